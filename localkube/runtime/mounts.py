"""Mounts by descriptor: a source is cloned from one and attached to another, with its flags already set.

A path could point elsewhere by the time it is mounted on; a descriptor cannot. Missing mount points of a
container are created here as well. ``rootfs.py`` decides what is mounted. Standard library only.

Source: https://man7.org/linux/man-pages/man2/open_tree.2.html
"""

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field

from localkube.runtime.messages import close_all
from localkube.runtime.path_resolution import EXACT, HANDLE, IN_ROOT, Identity, Resolution, location
from localkube.runtime.syscalls import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_REMOUNT,
    clone_tree,
    map_ids,
    mount,
    move_mount,
    new_mount,
    restrict_mount,
    set_file_ids,
)

SAFE = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
READ_ONLY = SAFE | MOUNT_ATTR_RDONLY
# The errors where the kernel or the file system cannot map ids: before Linux 5.12, on most network file
# systems, and for a mount that is mapped already.
UNMAPPABLE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class ContainerRoot:
    """A container's root file system under construction.

    Attributes:
        directory: Its root, open.
        owner: The id of the container's root, as the runtime sees it.
        user_namespace: The pod's.
        hidden: Directories that are covered also in mounts with the option ``masked``: their paths on the
            machine, and their inodes.
        volumes: Descriptors of the mount points of bind mounts.
        covers: Descriptors of new file systems' mounts, and whether each becomes read-only at the end.
    """

    directory: int
    owner: int = 0
    user_namespace: int | None = None
    hidden: tuple[tuple[str, Identity], ...] = ()
    volumes: list[int] = field(default_factory=list)
    covers: list[tuple[int, bool]] = field(default_factory=list)

    def tmpfs(self, attributes: int, *options: str) -> int:
        """Create a tmpfs owned by the container's root; returns its descriptor."""
        owned = (*options, f"uid={self.owner}", f"gid={self.owner}")
        return new_mount("tmpfs", owned, MOUNT_ATTR_NOSUID | attributes)

    def mount_point(self, path: str, *, is_file: bool) -> "closing":
        """Open the path to mount on, created if it is missing; symlinks and ``..`` stay inside the root."""

        def make(directory: int, name: str, last: bool) -> int:
            return self._make(directory, name, is_file=is_file and last)

        try:
            return closing(IN_ROOT.open(self.directory, path))
        except FileNotFoundError:
            return closing(Resolution(in_root=True, make=make).open(self.directory, path))

    def _make(self, directory: int, name: str, *, is_file: bool) -> int:
        try:
            self.create(name, inside=directory, is_file=is_file)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EOVERFLOW):
                raise
            directory = self._shadow(directory)
            self.create(name, inside=directory, is_file=is_file)
        return directory

    def _shadow(self, original: int) -> int:
        """Cover a directory by a writable one with the same entries; returns the descriptor of that.

        Another container may replace an entry meanwhile: the opened one is bound, with the flags of the mount
        that it is in.
        """
        place = location(original)
        cover = self.tmpfs(MOUNT_ATTR_NODEV, "mode=755", "size=64m")
        move_mount(cover, original)
        with closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=original)) as listed:
            names = os.listdir(listed)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._show(name, original, cover)
        in_volume = any(f"{place}/".startswith(f"{location(volume)}/") for volume in self.volumes)
        self.covers.append((os.dup(cover), in_volume))
        return cover

    def _show(self, name: str, original: int, cover: int) -> None:
        with closing(os.open(name, HANDLE, dir_fd=original)) as entry:
            mode = os.fstat(entry).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink("", dir_fd=entry), name, dir_fd=cover)
                return
            self.create(name, inside=cover, is_file=not stat.S_ISDIR(mode))
            with closing(EXACT.open(cover, name)) as place:
                attach(clone_tree(entry), place)

    def create(self, name: str, *, inside: int, is_file: bool) -> None:
        """Create a file or directory as the container's root: its volumes may map no other id."""
        set_file_ids(self.owner)
        try:
            if is_file:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                os.close(os.open(name, flags, 0o644, dir_fd=inside))
            else:
                os.mkdir(name, 0o755, dir_fd=inside)
        finally:
            set_file_ids(0)

    def close(self, *, readonly: bool) -> None:
        """Make the mounts that have to be read-only so, and close the descriptors."""
        for descriptor, is_read_only in self.covers:
            if is_read_only:
                restrict(descriptor, READ_ONLY, recursive=False)
            os.close(descriptor)
        close_all(self.volumes)
        if readonly:
            restrict(self.directory, READ_ONLY, recursive=False)
        os.close(self.directory)


def clone(source: int | str, user_namespace: int | None = None) -> int:
    """Clone the mounts at a descriptor, with ids shifted into the user namespace where that can be done.

    Args:
        source: A descriptor, or a path that no pod can influence.
    """
    tree = clone_tree(source)
    if user_namespace is not None:
        try:
            map_ids(tree, user_namespace)
        except OSError as error:
            if error.errno not in UNMAPPABLE:
                os.close(tree)
                raise
    return tree


def attach(tree: int, target: int, *settings: tuple[int, bool], name: str = "") -> None:
    """Attach a tree of mounts to a descriptor, and close the tree.

    Args:
        name: An entry of the target to attach to, in a directory that is not visible to others yet.
        settings: Attributes, and whether they are recursive; set before the mount becomes visible.
    """
    try:
        deferred = []
        for attributes, recursive in settings:
            try:
                restrict_mount(tree, attributes, recursive=recursive)
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
                deferred.append(attributes)
        move_mount(tree, target, name)
        for attributes in deferred:
            restrict(tree, attributes, recursive=False)
    finally:
        os.close(tree)


def restrict(descriptor: int, attributes: int, *, recursive: bool) -> None:
    """Set attributes of a mount that is attached; before Linux 5.12 of the mount itself alone."""
    try:
        restrict_mount(descriptor, attributes, recursive=recursive)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # The attributes of mount_setattr have the same numbers as mount's flags.
        mount(None, f"/proc/self/fd/{descriptor}", None, MS_REMOUNT | MS_BIND | attributes)


def cover(root: int, path: str) -> None:
    """Cover a directory or file with an empty one, if it exists."""
    try:
        place = EXACT.open(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with closing(place):
        cover_open(place)


def cover_open(place: int) -> None:
    """Cover an open directory or file with an empty one."""
    if stat.S_ISDIR(os.fstat(place).st_mode):
        attach(new_mount("tmpfs", ("mode=555", "size=4k"), READ_ONLY), place)
    else:
        attach(clone("/dev/null"), place)


def open_own(path: str) -> int:
    """Open a directory or file whose path no pod can influence."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


class closing:
    """Close a descriptor at the end; a start does it fifty times, and a generator takes twice as long."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __enter__(self) -> int:
        return self.descriptor

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)
