"""A container's root file system: the host's, read-only, with writable places and volumes mounted into it.

The kubelet decides on the mounts (``kubelet/pods/container_spec.py``); they are made here, in the mount
namespace of the container. Standard library only.
"""

import errno
import os
import stat
from collections.abc import Iterable

from localkube.runtime.container_spec import ContainerSpec, MountSpec
from localkube.runtime.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_UNBINDABLE,
    PROC_FLAGS,
    make_read_only,
    mount,
    pivot_root,
)

# Not taken from the host, wherever the root is.
OWN_DIRECTORIES = {"dev", "proc", "lost+found"}
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def build_root(spec: ContainerSpec, scratch: str) -> None:
    """Make the container's root file system.

    The root is a tmpfs; the host's top-level directories are bound into it, read-only. A mount point that
    the host lacks is made by putting a tmpfs over its parent and binding the parent's entries into that,
    because an overlay over the host's root is refused in a user namespace.

    Args:
        scratch: A directory on which the new root is mounted; containers share it without seeing each other.
    """
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1g")
    mount(None, scratch, None, MS_UNBINDABLE)
    covered = {each.destination.strip("/") for each in spec.mounts if each.type == "tmpfs"}
    for name in sorted(set(os.listdir(spec.root.path)) - covered - OWN_DIRECTORIES):
        _take_from_host(os.path.join(spec.root.path, name), scratch + "/" + name)
    os.mkdir(scratch + "/proc")
    _make_devices(scratch + "/dev", spec.linux.devices)
    for path in spec.linux.masked_paths:
        _cover(scratch + path)
    for each in spec.mounts:
        _mount_entry(each, scratch, spec.linux.masked_paths)
    # The working directory comes before the root is read-only, and may lie below one that is.
    mount_point(scratch, spec.process.cwd, is_file=False)
    if spec.root.readonly:
        mount(None, scratch, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def enter_root(scratch: str) -> None:
    """Make ``scratch`` the root, with a /proc of the calling process's own namespace.

    /proc comes first: a user namespace may mount it only while an older one is still to be seen.
    """
    mount("proc", scratch + "/proc", "proc", PROC_FLAGS)
    os.chdir(scratch)
    pivot_root(scratch)
    os.chdir("/")


def _take_from_host(source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.mkdir(target)
        mount(source, target, None, MS_BIND | MS_REC)
        make_read_only(target)


def _make_devices(directory: str, devices: Iterable[str]) -> None:
    """Make a /dev with these device nodes of the host, and nothing of the host's to write on."""
    os.mkdir(directory)
    mount("tmpfs", directory, "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for path in devices:
        if os.path.exists(path):
            target = mount_point(directory, path.removeprefix("/dev"), is_file=not os.path.isdir(path))
            mount(path, target, None, MS_BIND | MS_REC)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, f"{directory}/{name}")
    os.mkdir(directory + "/pts")
    mount(
        "devpts", directory + "/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    os.mkdir(directory + "/shm")


def _mount_entry(entry: MountSpec, scratch: str, masked_paths: Iterable[str] = ()) -> None:
    if entry.type == "tmpfs":
        target = mount_point(scratch, entry.destination, is_file=False)
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, ",".join(entry.options))
        return
    source = _open_exactly(entry.source) if "nosymlinks" in entry.options else _open(entry.source)
    try:
        is_file = not stat.S_ISDIR(os.fstat(source).st_mode)
        target = mount_point(scratch, entry.destination, is_file=is_file)
        mount(f"/proc/self/fd/{source}", target, None, MS_BIND | MS_REC)
        if "masked" in entry.options:
            _mask_within(os.readlink(f"/proc/self/fd/{source}"), target, masked_paths)
    finally:
        os.close(source)
    if entry.readonly:
        make_read_only(target)


def _mask_within(source: str, target: str, masked_paths: Iterable[str]) -> None:
    """Cover masked directories in a mount of a directory above them; refuse a source inside one of them."""
    for directory in masked_paths:
        if (source + "/").startswith(directory + "/"):
            raise OSError(errno.EACCES, "it belongs to the local cluster itself", source)
        above = source.rstrip("/") + "/"
        if directory.startswith(above):
            _cover(os.path.join(target, directory[len(above) :]))


def _cover(directory: str) -> None:
    if os.path.isdir(directory):
        mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=555,size=4k")


def _open(name: str, *, inside: int | None = None, follow: bool = True) -> int:
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    return os.open(name, flags, dir_fd=inside)


def _open_exactly(path: str) -> int:
    """Open a path of which no part may be a symlink: one may have been put there since it was checked."""
    place = _open("/")
    for part in path.strip("/").split("/"):
        above, place = place, _open(part, inside=place, follow=False)
        os.close(above)
        if stat.S_ISLNK(os.fstat(place).st_mode):
            os.close(place)
            raise OSError(errno.ELOOP, "the path has become a symlink since it was checked", path)
    return place


def mount_point(root: str, path: str, *, is_file: bool) -> str:
    """Find or make the path under ``root`` to mount on; symlinks stay inside the root.

    Each step is taken from an open directory, and no link is followed by the kernel: a volume's directories
    may be exchanged for links meanwhile, by another container, and nothing may be made where those lead.
    """
    way, parts, hops = _Way(root), [part for part in path.split("/") if part not in ("", ".")], 0
    try:
        while parts:
            part = parts.pop(0)
            if part == "..":
                way.back()
                continue
            link = way.step(part, is_file=is_file and not parts)
            if link is None:
                continue
            hops += 1
            if hops > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if link.startswith("/"):
                way.restart()
            parts = [step for step in link.split("/") if step not in ("", ".")] + parts
        return way.path
    finally:
        way.close()


class _Way:
    """The directories from a root to a place below it, open."""

    def __init__(self, root: str) -> None:
        self._names = [root]
        self._open = [_open(root)]

    @property
    def path(self) -> str:
        return "/".join(self._names)

    def back(self) -> None:
        if len(self._open) > 1:
            self._names.pop()
            os.close(self._open.pop())

    def restart(self) -> None:
        while len(self._open) > 1:
            self.back()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def step(self, name: str, *, is_file: bool) -> str | None:
        """Enter ``name``, made where it is missing; return where it leads if it is a symlink."""
        try:
            found = _open(name, inside=self._open[-1], follow=False)
        except FileNotFoundError:
            self._make(name, is_file=is_file)
            found = _open(name, inside=self._open[-1], follow=False)
        if stat.S_ISLNK(os.fstat(found).st_mode):
            try:
                return os.readlink("", dir_fd=found)
            finally:
                os.close(found)
        self._names.append(name)
        self._open.append(found)
        return None

    def _make(self, name: str, *, is_file: bool) -> None:
        try:
            _create(name, inside=self._open[-1], is_file=is_file)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            self._shadow()
            _create(name, inside=self._open[-1], is_file=is_file)

    def _shadow(self) -> None:
        """Cover the last directory, a read-only one, by a writable one with the same entries."""
        original = self._open[-1]
        entries = list(os.scandir(f"/proc/self/fd/{original}"))
        mount("tmpfs", self.path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64m")
        above = self._open[-2] if len(self._open) > 1 else None
        cover = _open(self._names[-1], inside=above, follow=False)
        for entry in entries:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), entry.name, dir_fd=cover)
                continue
            _create(entry.name, inside=cover, is_file=not entry.is_dir())
            mount(entry.path, f"/proc/self/fd/{cover}/{entry.name}", None, MS_BIND | MS_REC)
        self._open[-1] = cover
        os.close(original)


def _create(name: str, *, inside: int, is_file: bool) -> None:
    if is_file:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=inside))
    else:
        os.mkdir(name, 0o755, dir_fd=inside)
