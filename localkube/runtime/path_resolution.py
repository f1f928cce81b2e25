"""Path resolution: turn a path that a pod can influence into an open descriptor, once.

A container can replace a directory of its volume by a symlink between any two system calls. So no path from
a pod's specification, and no path below a directory that a pod may write to, is opened, created or mounted by
name elsewhere: it is resolved here from an open directory, and from then on represented by the descriptor.
The kernel resolves it by openat2; where directories have to be created, and before Linux 5.6, the path is
walked one name at a time, without following a symlink. Magic links, as in /proc/self/fd, are never followed.
``tests/localkube/test_paths_of_pods.py`` finds code that opens by path instead. Standard library only.

Source: https://man7.org/linux/man-pages/man2/openat2.2.html
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from localkube.runtime import syscalls

# Imported on other systems too.
O_PATH = getattr(os, "O_PATH", 0)
HANDLE = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40
# The kernel or a seccomp filter does not support the call; or a concurrent rename interrupted the resolution.
UNAVAILABLE = (errno.ENOSYS, errno.EPERM, errno.EAGAIN)
# A device and an inode.
Identity = tuple[int, int]
# Creates an entry in an open directory: a directory, unless it is the last of its path and has to be a file.
# Returns the directory that contains it now: another one if the directory had to be covered.
Maker = Callable[[int, str, bool], int]


@dataclass(frozen=True)
class Resolution:
    """The rules for one path.

    Attributes:
        in_root: Symlinks and ``..`` stay in the root as after a chroot; by default, a path that leads out of
            the root is refused.
        links: Follow symlinks.
        mounts: Cross into other mounts.
        hidden: Directories that are not entered.
        make: Creates missing entries.
    """

    in_root: bool = False
    links: bool = True
    mounts: bool = True
    hidden: Set[Identity] = frozenset()
    make: Maker | None = field(default=None, compare=False)

    def open(self, root: int, path: str) -> int:
        """Open a path from an open directory, as a handle (O_PATH).

        Raises:
            OSError: EXDEV, it leads out of the root; ELOOP, a symlink that may not be followed; EACCES, it is
                hidden; EINVAL, it contains a NUL.
        """
        if "\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if not self.hidden and not self.make:
            try:
                return syscalls.openat2(root, path.strip("/") or ".", O_PATH | os.O_CLOEXEC, self._flags())
            except OSError as error:
                if error.errno not in UNAVAILABLE:
                    raise _explained(error, path) from error
        with contextlib.closing(_Walk(root, path, self)) as walk:
            return walk.end()

    def _flags(self) -> int:
        scope = syscalls.RESOLVE_IN_ROOT if self.in_root else syscalls.RESOLVE_BENEATH
        no_links = 0 if self.links else syscalls.RESOLVE_NO_SYMLINKS
        no_mounts = 0 if self.mounts else syscalls.RESOLVE_NO_XDEV
        return scope | syscalls.RESOLVE_NO_MAGICLINKS | no_links | no_mounts


BENEATH, EXACT, IN_ROOT = Resolution(), Resolution(links=False), Resolution(in_root=True)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str], *subpaths: str, hidden: Set[Identity] = frozenset()
) -> Iterator[int]:
    """Open a directory or file of the machine, or one at subpaths of it, each beneath the one before.

    Args:
        path: A path whose symlinks are the machine's own, and are followed.
        hidden: Directories in which nothing is opened.
    """
    place = _machines(os.fspath(path), hidden)
    try:
        for subpath in subpaths:
            above, place = place, Resolution(hidden=hidden).open(place, subpath)
            os.close(above)
        yield place
    finally:
        os.close(place)


def _machines(path: str, hidden: Set[Identity]) -> int:
    if not hidden:
        with contextlib.suppress(OSError):  # the walk below tries it again, or explains the error
            flags = syscalls.RESOLVE_NO_MAGICLINKS
            return syscalls.openat2(syscalls.AT_FDCWD, f"/{path}", O_PATH | os.O_CLOEXEC, flags)
    top = os.open("/", HANDLE)
    try:
        return Resolution(in_root=True, hidden=hidden).open(top, path)
    finally:
        os.close(top)


def location(descriptor: int) -> str:
    """Read the current path of an open directory or file, to be shown or compared."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class _Walk:
    """The open directories from a root down to the current one."""

    def __init__(self, root: int, path: str, rules: Resolution) -> None:
        self._path, self._rules, self._links = path, rules, 0
        self._mount = None if rules.mounts else _mount_of(root)
        self._open = [os.dup(root)]

    def end(self) -> int:
        """Walk to the end of the path, and return a descriptor of it."""
        names = _reversed(self._path)
        while names:
            name = names.pop()
            if name == "..":
                self._back()
            elif (link := self._step(name, last=not names)) is not None:
                self._links += 1
                if self._links > MAX_LINKS or not self._rules.links:
                    raise _failed(errno.ELOOP, self._path)
                if link.startswith("/"):
                    self._restart()
                names += _reversed(link)
        return self._open.pop()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _back(self) -> None:
        if len(self._open) > 1:
            os.close(self._open.pop())
        elif not self._rules.in_root:
            raise _failed(errno.EXDEV, self._path)

    def _restart(self) -> None:
        if not self._rules.in_root:
            raise _failed(errno.EXDEV, self._path)
        while len(self._open) > 1:
            os.close(self._open.pop())

    def _step(self, name: str, *, last: bool) -> str | None:
        """Enter ``name``, created if it is missing; return its target if it is a symlink."""
        try:
            place = os.open(name, HANDLE, dir_fd=self._open[-1])
        except FileNotFoundError:
            if self._rules.make is None:
                raise
            self._make(name, last=last)
            place = os.open(name, HANDLE, dir_fd=self._open[-1])
        try:
            if stat.S_ISLNK(os.fstat(place).st_mode):
                return os.readlink("", dir_fd=place)
            if self._mount is not None and _mount_of(place) != self._mount:
                raise _failed(errno.EXDEV, self._path)
            if identity(place) in self._rules.hidden:
                raise OSError(errno.EACCES, HIDDEN, self._path)
            self._open.append(place)
            place = -1
        finally:
            if place >= 0:
                os.close(place)
        return None

    def _make(self, name: str, *, last: bool) -> None:
        assert self._rules.make is not None
        with contextlib.suppress(FileExistsError):  # another container of the volume was faster
            directory = self._rules.make(self._open[-1], name, last)
            if directory != self._open[-1]:
                os.close(self._open[-1])
                self._open[-1] = directory


HIDDEN = "it belongs to the local cluster itself, and is not shown to pods"
_MEANINGS = {
    errno.EXDEV: "the path leads out of its directory",
    errno.ELOOP: "a part of the path is a symlink that cannot be followed",
}


def _failed(code: int, path: str) -> OSError:
    return OSError(code, _MEANINGS[code], path)


def _explained(error: OSError, path: str) -> OSError:
    number = error.errno or 0
    return OSError(number, _MEANINGS.get(number, os.strerror(number)), path)


def _reversed(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _mount_of(descriptor: int) -> str:
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        return next(line for line in file if line.startswith("mnt_id:"))
