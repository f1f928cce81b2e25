"""Checks of ``hostPath`` and ``subPath``.

A hostPath has its declared type, shows nothing of the clusters' own directory, and is accessed with the
rights of the cluster's user. A subPath never leaves its volume. A container may have put symlinks into a
volume, so a subPath is walked from open directories, without letting the kernel follow links: an absolute
one, or ``..`` above the volume, is refused, whatever changes meanwhile.

Source: https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

_CHECKS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPathError(Exception):
    """The path is not what the volume's type requires."""


def refuse_private(path: str | Path, private: Iterable[str]) -> None:
    """Refuse a path inside a directory that is hidden from pods.

    The mount checks again (``runtime/rootfs.py``), because links may change until then.
    """
    real = os.path.realpath(path)
    for directory in private:
        if os.path.commonpath((real, directory)) == directory:
            raise HostPathError(f"{path} belongs to the local cluster itself, and is not shown to pods")


def everywhere(directory: str, mountinfo: str) -> set[str]:
    """Find the paths at which a directory can be seen: its file system may have several mounts.

    Args:
        directory: A real path.
        mountinfo: The mounts, as /proc/self/mountinfo has them.

    Example:
        >>> mounts = "1 0 8:1 / / rw - ext4 a rw\\n2 1 8:1 /home /mnt/other rw - ext4 a rw"
        >>> sorted(everywhere("/home/ada/own", mounts))
        ['/home/ada/own', '/mnt/other/ada/own']
    """
    mounts = [_mount(line) for line in mountinfo.splitlines()]
    above = [mount for mount in mounts if _below(directory, mount[2]) is not None]
    device, root, place = max(above, key=lambda mount: len(mount[2]))
    inside = os.path.join(root, _below(directory, place)).rstrip("/")
    found = {directory}
    for other, root, place in mounts:
        if other == device and (rest := _below(inside, root)) is not None:
            found.add(os.path.join(place, rest).rstrip("/"))
        elif other == device and _below(root, inside) is not None:
            found.add(place)
    return found


def places_of(device: str, inside: str, mountinfo: str) -> list[str]:
    """Find the paths at which a directory of a file system may be seen.

    Args:
        device: Of the file system, as ``8:1``.
        inside: The directory's path in the file system.
        mountinfo: As for ``everywhere``.

    Example:
        >>> mounts = "1 0 8:1 / / rw - ext4 a rw\\n2 1 8:1 /home /mnt rw - ext4 a rw"
        >>> places_of("8:1", "/home/ada", mounts)
        ['/home/ada', '/mnt/ada']
    """
    found = []
    for other, root, place in map(_mount, mountinfo.splitlines()):
        if other == device and (rest := _below(inside, root)) is not None:
            found.append(os.path.join(place, rest).rstrip("/") or "/")
    return found


def _mount(line: str) -> tuple[str, str, str]:
    """Read a mount's device, its root in the file system, and its place; with a space as an octal number."""
    fields = (
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in line.split(" ")[2:5]
    )
    device, root, place = fields
    return device, root, place


def _below(path: str, above: str) -> str | None:
    """Return ``path`` relative to ``above``; None if it is not below it."""
    if path == above:
        return ""
    above = above.rstrip("/") + "/"
    return path.removeprefix(above) if path.startswith(above) else None


def checked(path: str, kind: str) -> Path:
    """Check a path against its volume type, and create it where the type allows that.

    A path without a type that does not exist becomes a directory, as container engines do it.

    Raises:
        HostPathError: It is missing, or something else.
        OSError: This user may not look there, or not create it.
    """
    place = Path(path)
    if kind and kind not in _CHECKS:
        raise HostPathError(f"{kind} is an invalid volume type")
    if not place.exists():
        if kind in ("", "DirectoryOrCreate"):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
        elif kind == "FileOrCreate":
            place.touch()
            place.chmod(0o644)
    if not kind:
        return place
    is_kind, words = _CHECKS[kind]
    if not place.exists() or not is_kind(place.stat().st_mode):
        raise HostPathError(f"hostPath type check failed: {path} is not {words}")
    return place


_NO_FOLLOW = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


class SubPathError(Exception):
    """The path leaves its volume, or cannot be created."""


def resolve_subpath(root: Path, path: str, *, create: bool, owner: int = 0) -> Path:
    """Resolve ``path`` inside ``root`` to a real path.

    Args:
        root: The volume's directory on the host.
        path: Relative to it.
        create: Make what is missing, as directories.
        owner: Of these directories.

    Raises:
        SubPathError: It leads out of the volume, does not exist, or passes through a file.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise SubPathError(f"subPath {path!r} must be relative and must not contain '..'")
    try:
        with contextlib.closing(_Walk(root, path, create=create, owner=owner)) as walk:
            walk.follow([part for part in parts if part not in ("", ".")])
            return walk.place()
    except OSError as error:
        raise SubPathError(f"subPath {path!r}: {error.strerror}") from error


class _Walk:
    """A stack of open directories, with the volume's at the bottom."""

    def __init__(self, root: Path, path: str, *, create: bool, owner: int) -> None:
        self._owner = owner
        self._path = path
        self._create = create
        self._links = 0
        self._stack = [os.open(root, os.O_PATH | os.O_CLOEXEC)]

    def follow(self, parts: list[str]) -> None:
        pending = list(reversed(parts))
        while pending:
            part = pending.pop()
            if part == "..":
                if len(self._stack) == 1:
                    raise self._outside()
                os.close(self._stack.pop())
            else:
                link = self._step(part)
                if link is not None:
                    pending += reversed([step for step in link.split("/") if step not in ("", ".")])

    def place(self) -> Path:
        return Path(f"/proc/self/fd/{self._stack[-1]}").readlink()

    def close(self) -> None:
        for descriptor in self._stack:
            os.close(descriptor)

    def _step(self, part: str) -> str | None:
        """Enter ``part``; return the target when it is a symlink."""
        descriptor = self._open(part)
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            self._stack.append(descriptor)
            return None
        try:
            link = os.readlink("", dir_fd=descriptor)
        finally:
            os.close(descriptor)
        self._links += 1
        if link.startswith("/") or self._links > _MOST_LINKS:
            raise self._outside()
        return link

    def _open(self, part: str) -> int:
        parent = self._stack[-1]
        try:
            return os.open(part, _NO_FOLLOW, dir_fd=parent)
        except FileNotFoundError:
            if not self._create:
                raise
        try:
            os.mkdir(part, dir_fd=parent)
        except FileExistsError:  # another container of the volume was faster
            return os.open(part, _NO_FOLLOW, dir_fd=parent)
        made = os.open(part, _NO_FOLLOW, dir_fd=parent)
        # By its descriptor, because a container may have put a link there. The kubelet's umask is private.
        if stat.S_ISDIR(os.fstat(made).st_mode):
            os.chmod(f"/proc/self/fd/{made}", 0o755)
            if self._owner:
                os.chown(f"/proc/self/fd/{made}", self._owner, self._owner)
        return made

    def _outside(self) -> SubPathError:
        return SubPathError(f"subPath {self._path!r} leads out of the volume by a symlink")
