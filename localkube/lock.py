"""Keep two commands on one cluster apart: the second waits for the first, and says what that one is doing.

The holder writes its last step into the locked file. The kernel releases the lock when its process ends.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localkube.paths import ClusterPaths, unwritable

Report = Callable[[str], None]
POLL_SECONDS = 0.1
MOST_BYTES = 4096


def nobody(text: str) -> None:
    """A report that nobody reads."""


def lock_path(paths: ClusterPaths) -> Path:
    """Return the file to lock; it is beside the cluster's directory, which comes and goes."""
    return paths.root.parent / f".{paths.name}.lock"


@contextmanager
def locked(paths: ClusterPaths, report: Report) -> Iterator[Report]:
    """Hold a cluster's lock, however long others need it first.

    Args:
        paths: The cluster's files.
        report: Called with what the command that holds the lock reports.

    Yields:
        What to call with this command's own steps: ``report``, and others that wait will know.

    Raises:
        LocalClusterError: The file cannot be made.
    """
    descriptor = _acquire(lock_path(paths), report)

    def tell(text: str) -> None:
        os.ftruncate(descriptor, os.pwrite(descriptor, text.encode()[:MOST_BYTES], 0))
        report(text)

    try:
        os.ftruncate(descriptor, 0)
        yield tell
    finally:
        os.close(descriptor)


def _acquire(path: Path, report: Report) -> int:
    said = ""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(descriptor, path):
                return descriptor
        except BlockingIOError:
            doing = os.pread(descriptor, MOST_BYTES, 0).decode(errors="replace")
            if said != (said := f"another command works on this cluster: {doing or 'it has just begun'}"):
                report(said)
            time.sleep(POLL_SECONDS)
        os.close(descriptor)


def _is(descriptor: int, path: Path) -> bool:
    """Tell whether an open file is still the one at ``path``: who deletes a cluster removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
