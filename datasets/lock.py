"""One process at a time prepares a dataset, whichever node it runs on.

A POSIX lock on a file of the volume: the kernel lets go of it when its holder dies, and NFS servers (EFS,
Filestore) pass it on between nodes, those of version 4 after a lease of a minute or so when a whole node is
lost. Where a file system keeps no locks, two at once do double work, and each result is still whole: both
work in folders of their own.
"""

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from say import Trouble, say

LOOK_SECONDS = 0.25


@contextlib.contextmanager
def only_one(path: Path, *, patience: float) -> Iterator[None]:
    """Hold the lock for the body; wait for whoever has it.

    Raises:
        Trouble: It was not to be had for ``patience`` seconds.
    """
    with path.open("a") as file:
        deadline, told = time.monotonic() + patience, False
        while not _take(file):
            if time.monotonic() > deadline:
                raise Trouble(f"another one has been preparing this dataset for {patience:.0f} s")
            if not told:
                told = True
                say("progress", doing="waiting: another one is preparing this dataset", percent=None)
            time.sleep(LOOK_SECONDS)
        yield


def _take(file) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return True
        raise
    return True
