"""One process at a time obtains a thing of the cache; the others wait, and report what that one reports.

The lock is the kernel's, so it ends with its holder. Beside it lies the holder's newest line of progress.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localkube.controlplane.steps import Report
from localkube.paths import cache_dir, private_dir, unwritable

FOLLOW_SECONDS = 1.0  # flock has no wait that could be interrupted to report a line


@dataclass(frozen=True)
class Turn:
    """The lock, held.

    Attributes:
        waited: Whether another process had it first.
        report: Reports a line here, and to the processes that wait.
    """

    waited: bool
    report: Report


@contextlib.contextmanager
def alone(report: Report, *, making: str = "the control plane") -> Iterator[Turn]:
    """Hold the lock on one kind of thing in the cache.

    Args:
        report: Called with a line when another process has it, and with that one's lines of progress.
        making: The kind of thing.

    Raises:
        LocalClusterError: The cache cannot be written.
    """
    folder = private_dir(cache_dir() / "controlplane")
    name = "lock" if making == "the control plane" else f"lock-{making.replace(' ', '-')}"
    try:
        lock = (folder / name).open("w", encoding="utf-8")
    except OSError as error:
        raise unwritable(folder, error) from error
    progress = folder / f"{name}.progress"
    with lock:
        waited = _acquire(lock, progress, report, making)
        try:
            yield Turn(waited, _publisher(progress, report))
        finally:
            progress.unlink(missing_ok=True)


def _acquire(lock: IO[str], progress: Path, report: Report, making: str) -> bool:
    waited, last = False, ""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waited:
                report(f"Control plane: another process makes {making}; waiting for that one to finish")
            waited = True
            with contextlib.suppress(FileNotFoundError):
                line = progress.read_text(encoding="utf-8")
                if line != last:
                    report(last := line)
            time.sleep(FOLLOW_SECONDS)
        else:
            return waited


def _publisher(progress: Path, report: Report) -> Report:
    aside = progress.with_suffix(".new")

    def publish(line: str) -> None:
        report(line)
        # A full disk is the business of what is being obtained, whose error says it.
        with contextlib.suppress(OSError):
            aside.write_text(line, encoding="utf-8")
            os.replace(aside, progress)

    return publish
