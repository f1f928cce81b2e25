"""Disk space that is reserved for etcd, which ends when it finds the disk full.

Its log and its database have room for a while; beyond that it needs new blocks. They are kept in a file that
is deleted when the disk has become full: whatever fills it has failed by then, so that the space is etcd's.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from localkube.runtime.syscalls import reserve

log = logging.getLogger(__name__)

# Two segments of etcd's log, and as much for its database and snapshots.
SIZE = 192 << 20
FULL_BYTES, AMPLE_SIZES = 1 << 20, 3
CHECK_SECONDS = 1.0


class DiskReserve:
    """A file of ``size`` bytes without content, taken while the disk has ample space."""

    def __init__(self, path: Path, *, size: int = SIZE) -> None:
        self._path, self._size = path, size

    async def keep(self, awake: asyncio.Event) -> None:
        """Take and release the reserve while the cluster is awake, until this task is cancelled."""
        try:
            while True:
                with contextlib.suppress(OSError):  # a disk may fail in any way; the next check may succeed
                    self.check()
                await asyncio.sleep(CHECK_SECONDS)
                await awake.wait()
        finally:
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Release the reserve if the disk is full; take it if there is ample space."""
        disk = os.statvfs(self._path.parent)
        free = disk.f_bavail * disk.f_frsize
        exists = self._path.exists()
        if exists and free < FULL_BYTES:
            self._path.unlink()
            log.warning("the disk is full: %d MB that were reserved for etcd are released", self._size >> 20)
        elif not exists and free > AMPLE_SIZES * self._size:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                reserve(descriptor, self._size)
            finally:
                os.close(descriptor)
