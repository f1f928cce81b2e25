"""The files of one log: ``0.log`` is being written, ``0.log.1``, ``0.log.2`` and so on are what came before.

The number before ``.log`` is the container's run. The kubelet names rotated files by time, compresses them
and never shows them again; here they stay readable, because a run's metrics are read from its whole log.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LogLimits:
    """How much of one run of a container is kept; the kubelet's containerLogMaxSize and containerLogMaxFiles.

    Attributes:
        bytes: Of one file, which ends at the next end of a line.
        files: Of one run, the newest.
    """

    bytes: int = 10 * 1024 * 1024
    files: int = 5


def segments(path: Path) -> list[Path]:
    """Return the files that there are of the log whose newest file is ``path``, the oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        found = [name for name in path.parent.iterdir() if name.name.startswith(path.name)]
    return sorted(found, key=lambda name: (name == path, _number(name)))


def rotate(path: Path, *, keep: int) -> None:
    """Put the newest file aside, and remove the oldest so that ``keep`` of those put aside stay."""
    aside = [name for name in segments(path) if name != path]
    number = _number(aside[-1]) + 1 if aside else 1
    path.rename(path.with_name(f"{path.name}.{number}"))
    for name in aside[: max(0, len(aside) + 1 - keep)]:
        name.unlink()


def forget_runs_before(path: Path) -> None:
    """Remove the logs of a container's runs older than the one before this."""
    run = int(path.stem)
    if run >= 2:
        with contextlib.suppress(FileNotFoundError):
            for name in list(path.parent.iterdir()):
                if int(name.name.split(".")[0]) < run - 1:
                    name.unlink()


def _number(name: Path) -> int:
    """Return how many files were put aside before this one; 0 for the newest."""
    return 0 if name.suffix == ".log" else int(name.suffix[1:])
