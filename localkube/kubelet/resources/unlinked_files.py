"""Unlinked files that are still open: they take disk space, but no walk through a directory finds them.

Files that only a memory mapping or a socket's queue refers to are not found.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localkube.kubelet.resources.limits import tree

DELETED = " (deleted)"


def unlinked(container: Mapping[str, Any], pid: int, disk: Path) -> dict[str, int]:
    """Sum the bytes of a container's open unlinked files, by volume; "" is its writable layer.

    Args:
        pid: Its first process.
        disk: A directory on the file system of the pods; files of others, as those in memory, do not count.
    """
    sizes: dict[str, int] = {}
    mounts = {mount["mountPath"].rstrip("/"): mount["name"] for mount in container.get("volumeMounts") or []}
    device, files = os.stat(disk).st_dev, set()
    for process in tree(pid):
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):  # it is closed meanwhile
                    status, path = os.stat(descriptor.path), os.readlink(descriptor.path)
                    is_known = (status.st_dev, status.st_ino) in files
                    if status.st_nlink or is_known or not stat.S_ISREG(status.st_mode):
                        continue
                    files.add((status.st_dev, status.st_ino))
                    if status.st_dev == device and status.st_blocks:
                        volume = _volume(path.removesuffix(DELETED), mounts)
                        sizes[volume] = sizes.get(volume, 0) + status.st_blocks * 512
    return sizes


def _volume(path: str, mounts: Mapping[str, str]) -> str:
    """Name the volume whose mount a path is below, the innermost first."""
    inside = [place for place in mounts if path.startswith(place + "/")]
    return mounts[max(inside, key=len)] if inside else ""
