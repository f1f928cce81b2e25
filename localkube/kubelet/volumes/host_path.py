"""Directories of this machine in pods: the checks of ``hostPath``, and the directories hidden from pods.

A hostPath must have its declared type, hides the clusters' own directory, and is accessed with the
permissions of the cluster's user. ``runtime/path_resolution.py`` resolves paths.

Source: https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from localkube.kubelet.containers.expansion import ConfigError
from localkube.runtime.path_resolution import Identity, Maker, Resolution, identity, location, opened

_CHECKS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HiddenDirectories:
    """Directories that no pod may see, by device and inode: one of those above may be renamed meanwhile.

    Args:
        paths: Real ones. They stay open.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._open = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths if os.path.isdir(path)]
        self.identities: frozenset[Identity] = frozenset(map(identity, self._open))

    def places(self) -> list[tuple[str, Identity]]:
        """List their current paths and their inodes."""
        return [(location(directory), identity(directory)) for directory in self._open]


def mount_paths(directory: str, mountinfo: str) -> set[str]:
    """Find the paths at which a directory can be seen: its file system may have several mounts.

    Args:
        directory: A real path.
        mountinfo: The mounts, as /proc/self/mountinfo has them.

    Example:
        >>> mounts = "1 0 8:1 / / rw - ext4 a rw\\n2 1 8:1 /home /mnt/other rw - ext4 a rw"
        >>> sorted(mount_paths("/home/ada/own", mounts))
        ['/home/ada/own', '/mnt/other/ada/own']
    """
    mounts = [_mount(line) for line in mountinfo.splitlines()]
    above = [mount for mount in mounts if _below(directory, mount[2]) is not None]
    device, root, place = max(above, key=lambda mount: len(mount[2]))
    inside = os.path.join(root, _below(directory, place) or "").rstrip("/")
    places = {directory}
    for mounted, root, place in mounts:
        if mounted == device and (relative := _below(inside, root)) is not None:
            places.add(os.path.join(place, relative).rstrip("/"))
        elif mounted == device and _below(root, inside) is not None:
            places.add(place)
    return places


def _mount(line: str) -> tuple[str, str, str]:
    """Parse a mount's device, its root in the file system, and its mount point, with octal escapes."""
    fields = (
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in line.split(" ")[2:5]
    )
    device, root, place = fields
    return device, root, place


def _below(path: str, above: str) -> str | None:
    if path == above:
        return ""
    above = above.rstrip("/") + "/"
    return path.removeprefix(above) if path.startswith(above) else None


def check(
    path: str, kind: str, *, beneath: Path | None = None, hidden: HiddenDirectories | None = None
) -> None:
    """Check a path against its volume type, and create it where the type allows that.

    A path without a type that does not exist becomes a directory, as container engines do it.

    Args:
        beneath: The directory that symlinks may not leave; by default symlinks are followed as the machine's.
    """
    if kind and kind not in _CHECKS:
        raise ConfigError(f"{kind} is an invalid volume type")
    make = None
    if kind in ("", "DirectoryOrCreate", "FileOrCreate"):
        make = maker(is_file=kind == "FileOrCreate")
    avoided = hidden.identities if hidden else frozenset()
    rules = Resolution(in_root=beneath is None, hidden=avoided, make=make)
    try:
        with opened(beneath or "/") as root:
            place = rules.open(root, path)
        mode = os.fstat(place).st_mode
        os.close(place)
    except FileNotFoundError:
        mode = 0
    is_kind, description = _CHECKS.get(kind, (bool, "there"))
    if not is_kind(mode):
        raise ConfigError(f"hostPath type check failed: {path} is not {description}")


def maker(*, owner: int = 0, is_file: bool = False, mode: int = 0o755) -> Maker:
    """Return a maker of the missing parts of a path: directories of this mode, and a file at its end."""
    return partial(_make, owner=owner, is_file=is_file, mode=mode)


def _make(directory: int, name: str, last: bool, *, owner: int, is_file: bool, mode: int) -> int:
    if is_file and not last:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if is_file:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=directory))
    else:
        os.mkdir(name, 0o755, dir_fd=directory)
    # By descriptor, because a container may have created a symlink. The kubelet's umask is private.
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o644 if is_file else mode)
            if owner:  # in a setgid directory, new files keep its group
                os.chown(f"/proc/self/fd/{descriptor}", owner, -1 if mode & stat.S_ISGID else owner)
    finally:
        os.close(descriptor)
    return directory
