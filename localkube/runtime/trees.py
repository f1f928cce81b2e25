"""Remove and measure directory trees that pods have written, however deep they are.

A pod can nest directories until their path is longer than any system call takes, and deeper than Python's
recursion goes. Each step is taken from an open directory, so no symlink is followed, and one directory is
open at a time.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SHOWN_LEVELS = 10


def remove_tree(path: Path) -> None:
    """Remove a directory and everything in it, without interruption."""
    for _ in removal(path):
        pass


def removal(path: Path) -> Iterator[None]:
    """Remove a directory and everything in it, file by file; safe to repeat.

    It continues after an entry that it cannot remove. Missing permissions of this user's directories are set.

    Raises:
        OSError: Not everything was removed; the error of the first such entry.
    """
    problems: list[OSError] = []

    def keep(error: OSError) -> None:
        if len(problems) < 2:
            problems.append(error)

    with contextlib.suppress(FileNotFoundError):
        for entry in walk(path, remove=True, failed=keep):
            _remove(entry, keep)
            yield
        try:
            os.rmdir(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            keep(error)
    if problems:
        raise problems[0]


def disk_usage(path: Path) -> int:
    """Sum the disk usage of a directory's entries; entries that vanish or cannot be read count 0."""
    return sum(disk_blocks(path))


def disk_blocks(path: Path) -> Iterator[int]:
    """Yield the bytes on disk of each entry below a directory; a file's are divided by its hard links."""
    for status in _stats(path):
        names = 1 if stat.S_ISDIR(status.st_mode) else max(1, status.st_nlink)
        yield status.st_blocks * 512 // names


def inodes(path: Path) -> Iterator[int]:
    """Yield 1 for each file and directory in a directory, each of which takes an inode."""
    return (1 for _ in _stats(path))


def _stats(path: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError):
        for entry in walk(path):
            with contextlib.suppress(OSError):
                yield os.stat(entry.name, dir_fd=entry.directory, follow_symlinks=False)


@dataclass(frozen=True)
class Entry:
    """An entry of a directory that is open now."""

    directory: int
    name: str
    is_directory: bool
    levels: "list[_Level]"

    def failed(self, error: OSError) -> OSError:
        """Describe a failure by the entry's path, which may be longer than any system call takes."""
        names = [level.name for level in self.levels[:SHOWN_LEVELS]]
        names += ["…"] if len(self.levels) > SHOWN_LEVELS else []
        return OSError(error.errno, error.strerror, "/".join([*names, self.name]))


@dataclass(frozen=True)
class _Level:
    """A directory between the top and the open one, and its entries that were not visited yet."""

    name: str
    identity: tuple[int, int]
    entries: Iterator[tuple[str, bool]]


def walk(
    top: Path, *, remove: bool = False, failed: Callable[[OSError], None] = lambda error: None
) -> Iterator[Entry]:
    """Yield each entry below ``top``, a directory after its entries.

    It returns to a parent by "..", and checks that this is the directory from which it came.

    Args:
        remove: For a removal: set missing permissions of this user's directories, and remove empty ones.
        failed: Called for each directory that cannot be entered.

    Raises:
        OSError: ``top`` cannot be entered, or a directory was moved meanwhile.
    """
    here = _entered(os.fspath(top), None, remove)
    levels = [_level(os.fspath(top), here)]
    try:
        while True:
            name, is_directory = next(levels[-1].entries, ("", False))
            entry = Entry(here, name, is_directory, levels)
            if name and is_directory and not (remove and _remove_empty(name, here)):
                try:
                    below = _entered(name, here, remove)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failed(entry.failed(error))
                    continue
                os.close(here)
                here = below
                levels.append(_level(name, here))
            elif name:
                yield entry
            elif len(levels) == 1:
                return
            else:
                done = levels.pop()
                above = os.open("..", _DIRECTORY, dir_fd=here)
                os.close(here)
                here = above
                entry = Entry(here, done.name, True, levels)
                if _identity(here) != levels[-1].identity:
                    raise entry.failed(OSError(errno.ESTALE, "a directory was moved meanwhile"))
                yield entry
    finally:
        os.close(here)


def _entered(name: str, directory: int | None, unlock: bool) -> int:
    """Open a directory so that its entries can be listed and opened, with ``unlock`` also removed."""
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        if not unlock:
            raise
        handle = os.open(name, _HANDLE, dir_fd=directory)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
            opened = os.open(f"/proc/self/fd/{handle}", _DIRECTORY & ~os.O_NOFOLLOW)
        finally:
            os.close(handle)
    try:
        status = os.fstat(opened)
        if unlock and status.st_mode & 0o700 != 0o700 and status.st_uid == os.geteuid():
            os.fchmod(opened, 0o700)
        os.stat(".", dir_fd=opened)  # returning by ".." requires the permission to search it
    except OSError:
        os.close(opened)
        raise
    return opened


def _level(name: str, descriptor: int) -> _Level:
    with os.scandir(descriptor) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    return _Level(name, _identity(descriptor), iter(names))


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _remove_empty(name: str, directory: int) -> bool:
    """Remove a directory if it is empty, which takes a tenth of the calls that it takes to look into it."""
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _remove(entry: Entry, failed: Callable[[OSError], None]) -> None:
    try:
        if entry.is_directory:
            os.rmdir(entry.name, dir_fd=entry.directory)
        else:
            os.unlink(entry.name, dir_fd=entry.directory)
    except FileNotFoundError:
        return
    except OSError as error:
        failed(entry.failed(error))
