"""File locks; a waiting process reports the holder's progress.

The holder writes its newest progress message into the locked file. The kernel releases the lock with the
process.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localkube.paths import ClusterPaths, cache_dir, private_dir, writing

Report = Callable[[str], None]
POLL_SECONDS = 0.1  # flock has no wait that could be interrupted to report a line
MAX_BYTES = 4096


def no_progress(text: str) -> None:
    """A report function that discards messages."""


def lock_path(paths: ClusterPaths) -> Path:
    """Name the lock file, beside the cluster's directory, which comes and goes."""
    return paths.root.parent / f".{paths.name}.lock"


@contextmanager
def locked(paths: ClusterPaths, report: Report) -> Iterator[Report]:
    """Hold a cluster's lock.

    Yields:
        A function that reports a step of this command, also to processes that wait for the lock.
    """
    with _hold(lock_path(paths), report, busy="another command is working on this cluster") as publish:
        yield publish


@contextmanager
def cache_lock(report: Report, *, making: str = "the control plane") -> Iterator[Report]:
    """Hold the lock on one part of the cache; yields as `locked` does.

    Args:
        report: Called with a line when another process holds the lock, and with that one's progress.
        making: The part that this process obtains.
    """
    folder = private_dir(cache_dir() / "controlplane")
    name = "lock" if making == "the control plane" else f"lock-{making.replace(' ', '-')}"
    with _hold(folder / name, report, busy=f"another process is preparing {making}") as publish:
        yield publish


@contextmanager
def _hold(path: Path, report: Report, *, busy: str) -> Iterator[Report]:
    descriptor = _acquire(path, report, busy)

    def publish(text: str) -> None:
        line = text.encode()[:MAX_BYTES]
        with writing(path.parent):
            os.ftruncate(descriptor, os.pwrite(descriptor, line, 0))
        report(text)

    try:
        os.ftruncate(descriptor, 0)
        yield publish
    finally:
        os.close(descriptor)


def _acquire(path: Path, report: Report, busy: str) -> int:
    message = ""
    while True:
        with writing(path.parent):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            progress = os.pread(descriptor, MAX_BYTES, 0).decode(errors="replace")
            if message != (message := f"{busy}: {progress or 'it has just begun'}"):
                report(message)
            time.sleep(POLL_SECONDS)
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Check whether an open file is still the one at ``path``: deleting a cluster removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
