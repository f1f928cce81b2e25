"""Keeping the logs of a cluster's components small.

Whoever writes a log has it open for appending, and cannot be asked to open another: so what is there is
copied aside, and the file made empty. Lines that come in between are lost.
"""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

MOST_BYTES = 10 * 2**20
LOOK_SECONDS = 60


async def keep_small(folder: Path, *, most: int = MOST_BYTES, every: float = LOOK_SECONDS) -> None:
    """Look after the logs of a folder, for ever."""
    while True:
        rotate(folder, most=most)
        await asyncio.sleep(every)


def rotate(folder: Path, *, most: int = MOST_BYTES) -> None:
    """Keep the last part of each log that has grown beyond ``most`` bytes as ``NAME.log.1``."""
    for path in folder.glob("*.log"):
        # A disk that is full is no reason to end: the file is made empty all the same.
        with contextlib.suppress(OSError):
            if path.stat().st_size <= most:
                continue
            with contextlib.suppress(OSError):
                _copy_end(path, path.with_name(path.name + ".1"), most)
            os.truncate(path, 0)


def _copy_end(source: Path, goal: Path, most: int) -> None:
    with (
        source.open("rb") as read,
        open(goal, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as write,
    ):
        read.seek(-min(most, source.stat().st_size), os.SEEK_END)
        shutil.copyfileobj(read, write)
