"""Checks of ``hostPath`` and ``subPath``.

A hostPath has its declared type, shows nothing of the clusters' own directory, and is accessed with the
rights of the cluster's user. A subPath never leaves its volume. A container may have put symlinks into a
volume, so a subPath is walked from open directories, without letting the kernel follow links: an absolute
one, or ``..`` above the volume, is refused, whatever changes meanwhile.

Source: https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types
"""

import contextlib
import os
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


def resolve_subpath(root: Path, path: str, *, create: bool) -> Path:
    """Resolve ``path`` inside ``root`` to a real path.

    Args:
        root: The volume's directory on the host.
        path: Relative to it.
        create: Make what is missing, as directories.

    Raises:
        SubPathError: It leads out of the volume, does not exist, or passes through a file.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise SubPathError(f"subPath {path!r} must be relative and must not contain '..'")
    try:
        with contextlib.closing(_Walk(root, path, create=create)) as walk:
            walk.follow([part for part in parts if part not in ("", ".")])
            return walk.place()
    except OSError as error:
        raise SubPathError(f"subPath {path!r}: {error.strerror}") from error


class _Walk:
    """A stack of open directories, with the volume's at the bottom."""

    def __init__(self, root: Path, path: str, *, create: bool) -> None:
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
        with contextlib.suppress(FileExistsError):  # another container of the volume was faster
            os.mkdir(part, dir_fd=parent)
            os.chmod(part, 0o755, dir_fd=parent)  # apart, because the kubelet's umask is private
        return os.open(part, _NO_FOLLOW, dir_fd=parent)

    def _outside(self) -> SubPathError:
        return SubPathError(f"subPath {self._path!r} leads out of the volume by a symlink")
