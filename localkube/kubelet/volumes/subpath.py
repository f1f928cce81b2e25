"""Find, or make, a path inside a volume without ever leaving it.

A container may have put symlinks into the volume. Every step is therefore taken from an open directory, and
the kernel follows no link for us: links are read and walked here, so that an absolute one, or a ``..`` above
the volume, is refused, whatever changes meanwhile.
"""

import contextlib
import os
import stat
from pathlib import Path

_NO_FOLLOW = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


class SubPathError(Exception):
    """The path leads out of its volume, or cannot be made."""


def inside(root: Path, path: str, *, create: bool) -> Path:
    """Return the real path of ``path`` inside ``root``.

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
    """A stack of open directories, the volume's at the bottom."""

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
        """Enter ``part``; return where it points when it is a symlink."""
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
            os.chmod(part, 0o755, dir_fd=parent)  # apart, because the agent's umask is private
        return os.open(part, _NO_FOLLOW, dir_fd=parent)

    def _outside(self) -> SubPathError:
        return SubPathError(f"subPath {self._path!r} leads out of the volume by a symlink")
