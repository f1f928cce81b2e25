"""Ensure that only one process at a time prepares a dataset, on any node.

This is a POSIX lock on a file of the volume: the kernel releases it when its holder dies, and NFS servers
(EFS, Filestore) share it between nodes; version 4 releases it after a lease of about a minute when a whole
node is lost. On a file system without locks, concurrent processes duplicate the work, but each result is
complete, because each works in its own folder.
"""

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from events import PreparationError, emit

POLL_SECONDS = 0.25


@contextlib.contextmanager
def exclusive_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the lock during the body; wait for the current holder.

    Raises:
        PreparationError: The lock was not available within ``timeout`` seconds.
    """
    with path.open("a") as file:
        deadline, reported = time.monotonic() + timeout, False
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise PreparationError(f"another process has been preparing this dataset for {timeout:.0f} s")
            if not reported:
                reported = True
                emit("progress", doing="waiting: another process is preparing this dataset", percent=None)
            time.sleep(POLL_SECONDS)
        yield


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return True
        raise
    return True
