"""A container's root file system, with volumes mounted into it.

It is that of an image, whose layers lie below a writable one, or the host's, read-only with writable places.

The kubelet decides on the mounts (``kubelet/pods/container_spec.py``); they are made here, in the mount
namespace of the container. Standard library only.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from localkube.runtime.container_spec import ContainerSpec, MountSpec, RootSpec
from localkube.runtime.syscalls import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_UNBINDABLE,
    PROC_FLAGS,
    mount,
    move_mount,
    open_idmapped_tree,
    pivot_root,
    restrict_mount,
    set_file_ids,
    unmount,
)

CONTROL_GROUPS = "/sys/fs/cgroup"
# Not taken from the host, wherever the root is.
OWN_DIRECTORIES = {"dev", "proc", "sys", "lost+found"}
OWN_MOUNTS = ("proc", "dev", "sys")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


# What reveals or changes the machine, as runc and containerd have it.
MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# Of what is refused where the kernel or the file system cannot map ids: before Linux 5.12, most network file
# systems, a mount that is mapped already.
UNMAPPABLE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class _Root:
    """A root file system in the making.

    Attributes:
        path: Where it is mounted.
        owner: The id of the container's root, as the runtime sees it.
        user_namespace: The pod's.
        masked_paths: Covered also in mounts with the option ``masked``.
    """

    path: str
    owner: int = 0
    user_namespace: int | None = None
    masked_paths: tuple[str, ...] = ()

    def tmpfs(self, target: str, flags: int, *options: str) -> None:
        """Mount a tmpfs that belongs to the container's root."""
        owned = (*options, f"uid={self.owner}", f"gid={self.owner}")
        mount("tmpfs", target, "tmpfs", MS_NOSUID | flags, ",".join(owned))

    def mount_point(self, path: str, *, is_file: bool) -> str:
        return mount_point(self.path, path, is_file=is_file, owner=self.owner)

    def directory(self, name: str) -> str:
        """Find or make a directory at the top.

        Raises:
            OSError: It is a link in the image, which would lead what is mounted there elsewhere.
        """
        place = self.mount_point(name, is_file=False)
        if place != f"{self.path}/{name}" or not os.path.isdir(place):
            raise OSError(errno.ENOTDIR, "it must be an ordinary directory in the image", f"/{name}")
        return place


def build_root(spec: ContainerSpec, scratch: str, user_namespace: int | None = None) -> None:
    """Make the container's root file system.

    Args:
        scratch: A directory on which the new root is mounted; containers share it without seeing each other.
        user_namespace: The pod's; the mounts belong to the runtime's, so that the container cannot undo them.
    """
    root = _Root(scratch, spec.linux.id_mapping.host_id, user_namespace, spec.linux.masked_paths)
    if spec.root.of_image:
        _mount_layers(root, spec.root)
        for name in OWN_MOUNTS:
            root.directory(name)
    else:
        _show_host(root, spec)
    _mount_sys(scratch + "/sys")
    _show_control_groups(root, spec.linux.cgroups_path)
    _make_devices(root, spec.linux.devices)
    for path in (*MASKED_PATHS, *(() if spec.root.of_image else spec.linux.masked_paths)):
        _cover(scratch + path)
    read_only = [made for each in spec.mounts if (made := _mount_entry(each, root)) is not None]
    # The working directory comes before what is read-only, and may lie below it.
    root.mount_point(spec.process.cwd, is_file=False)
    if spec.root.readonly:
        read_only.append(_open(scratch))
    for made in read_only:
        attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        restrict_mount(f"/proc/self/fd/{made}", attributes, recursive=False)
        os.close(made)


def enter_root(scratch: str) -> None:
    """Make ``scratch`` the root, with a /proc of the calling process's own namespace.

    /proc comes first: a user namespace may mount it only while an older one is still to be seen.
    """
    mount("proc", scratch + "/proc", "proc", PROC_FLAGS)
    for path in MASKED_PATHS:
        if path.startswith("/proc/"):
            _cover(scratch + path)
    for path in READ_ONLY_PATHS:
        if os.path.exists(scratch + path):
            mount(scratch + path, scratch + path, None, MS_BIND | MS_REC)
            restrict_mount(
                scratch + path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC
            )
    os.chdir(scratch)
    pivot_root(scratch)
    os.chdir("/")


def _mount_layers(root: _Root, spec: RootSpec) -> None:
    """Mount an image's layers below the container's own, or its copy of the image.

    The layers are shared by all pods, with the ids of the image: a mount shifts them into the pod's range.
    Their names are relative, because the options of a mount have room for a page.
    """
    source = _open(spec.path)
    try:
        _bind(source, root.path, root.user_namespace)
    finally:
        os.close(source)
    if spec.own:
        return
    writable = _open(spec.writable)
    try:
        os.chdir(root.path)
        above = f"/proc/self/fd/{writable}"
        options = f"lowerdir={':'.join(reversed(spec.layers))},upperdir={above}/upper,workdir={above}/work"
        # Nothing has to reach the disk: each run has a layer of its own.
        mount("overlay", root.path, "overlay", MS_NODEV, f"{options},userxattr,volatile")
    finally:
        os.chdir("/")
        os.close(writable)


def _show_host(root: _Root, spec: ContainerSpec) -> None:
    """Bind the host's top-level directories into a tmpfs, read-only.

    A mount point that the host lacks is made by putting a tmpfs over its parent and binding the parent's
    entries into that, because an overlay over the host's root is refused in a user namespace.
    """
    root.tmpfs(root.path, MS_NODEV, "mode=755", "size=1g")
    mount(None, root.path, None, MS_UNBINDABLE)
    covered = {each.destination.strip("/") for each in spec.mounts if not os.path.islink(each.destination)}
    for name in sorted(set(os.listdir(spec.root.path)) - covered - OWN_DIRECTORIES):
        source, target = os.path.join(spec.root.path, name), f"{root.path}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            os.mkdir(target)
            _bind_read_only(source, target)
    for name in OWN_MOUNTS:
        os.mkdir(f"{root.path}/{name}")


def _mount_sys(target: str) -> None:
    """Mount the /sys of the pod's own network; the host's, with what is mounted in it, if that is refused."""
    try:
        mount("sysfs", target, "sysfs", PROC_FLAGS | MS_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EBUSY):
            raise
        _bind_read_only("/sys", target)


def _bind_read_only(source: str, target: str) -> None:
    mount(source, target, None, MS_BIND | MS_REC)
    restrict_mount(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)


def _show_control_groups(root: _Root, files: Iterable[str]) -> None:
    """Show the container its own control groups alone, where programs look up their limits.

    Args:
        files: That of each by which it is entered. In version 1 there is a directory for each hierarchy, to
            which controllers' names may be links.
    """
    groups = [os.path.dirname(each) for each in files if each.startswith(CONTROL_GROUPS + "/")]
    place = root.path + CONTROL_GROUPS
    if any(os.path.exists(f"{group}/cgroup.controllers") for group in groups):
        _bind_read_only(groups[0], place)
        return
    if not groups:
        return
    links = {each.name: os.readlink(each.path) for each in os.scandir(CONTROL_GROUPS) if each.is_symlink()}
    sources = {group: _open(group) for group in groups}
    root.tmpfs(place, MS_NODEV | MS_NOEXEC, "mode=755", "size=64k")
    for group, source in sources.items():
        hierarchy = group.split("/")[4]
        os.mkdir(f"{place}/{hierarchy}")
        _bind_read_only(f"/proc/self/fd/{source}", f"{place}/{hierarchy}")
        os.close(source)
        for name in (name for name, target in links.items() if target == hierarchy):
            os.symlink(hierarchy, f"{place}/{name}")
    restrict_mount(place, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, recursive=False)


def _make_devices(root: _Root, devices: Iterable[str]) -> None:
    """Make a /dev with these device nodes of the host, and nothing of the host's to write on."""
    directory = root.path + "/dev"
    root.tmpfs(directory, 0, "mode=755", "size=64k")
    for path in devices:
        if os.path.exists(path):
            name = path.removeprefix("/dev")
            target = mount_point(directory, name, is_file=not os.path.isdir(path), owner=root.owner)
            mount(path, target, None, MS_BIND | MS_REC)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, f"{directory}/{name}")
    os.mkdir(directory + "/pts")
    mount(
        "devpts", directory + "/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    os.mkdir(directory + "/shm")


def _mount_entry(entry: MountSpec, root: _Root) -> int | None:
    """Make one of the specification's mounts; returns it, open, if it has to be made read-only at the end."""
    if entry.type == "overlay":
        _mount_image(entry, root)
        return None
    if entry.type == "tmpfs":
        target = root.mount_point(entry.destination, is_file=False)
        root.tmpfs(target, MS_NODEV, *(option for option in entry.options if option != "ro"))
        return _open(target) if entry.readonly else None
    source = _open_exactly(entry.source) if "nosymlinks" in entry.options else _open(entry.source)
    try:
        kind = os.fstat(source).st_mode
        target = root.mount_point(entry.destination, is_file=not stat.S_ISDIR(kind))
        _bind(source, target, root.user_namespace if "idmap" in entry.options else None)
        if "masked" in entry.options:
            _mask_within(os.readlink(f"/proc/self/fd/{source}"), target, root.masked_paths)
    finally:
        os.close(source)
    is_device = stat.S_ISCHR(kind) or stat.S_ISBLK(kind)
    attributes = MOUNT_ATTR_NOSUID | (0 if is_device else MOUNT_ATTR_NODEV)
    restrict_mount(target, attributes)
    if entry.readonly:
        restrict_mount(target, attributes | MOUNT_ATTR_RDONLY, recursive="rro" in entry.options)
    return None


def _mount_image(entry: MountSpec, root: _Root) -> None:
    """Mount an image read-only, or the file or directory of it that is its ``subpath``."""
    options = dict(option.split("=", 1) for option in entry.options if "=" in option)
    layers, below = options["lowerdir"], options.get("subpath", "")
    # Here it is put together, as nothing is mounted there yet.
    aside = f"{root.path}/proc"
    store = _open(entry.source)
    try:
        _bind(store, aside, root.user_namespace)
    finally:
        os.close(store)
    mounts = 1
    if ":" in layers:
        os.chdir(aside)
        try:
            mount("overlay", aside, "overlay", MS_NODEV | MS_RDONLY, f"lowerdir={layers},userxattr")
        finally:
            os.chdir("/")
        mounts = 2
    else:
        below = f"{layers}/{below}"
    place = _open_exactly(below, inside=aside)
    try:
        target = root.mount_point(entry.destination, is_file=not stat.S_ISDIR(os.fstat(place).st_mode))
        mount(f"/proc/self/fd/{place}", target, None, MS_BIND)
    finally:
        os.close(place)
    for _ in range(mounts):
        unmount(aside)
    restrict_mount(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)


def _bind(source: int, target: str, user_namespace: int | None) -> None:
    """Bind an open directory or file, with its ids shifted into the user namespace where that can be done."""
    if user_namespace is not None:
        try:
            tree = open_idmapped_tree(source, user_namespace)
        except OSError as error:
            if error.errno not in UNMAPPABLE:
                raise
        else:
            move_mount(tree, target)
            os.close(tree)
            return
    mount(f"/proc/self/fd/{source}", target, None, MS_BIND | MS_REC)


def _mask_within(source: str, target: str, masked_paths: Iterable[str]) -> None:
    """Cover masked directories in a mount of a directory above them; refuse a source inside one of them."""
    for directory in masked_paths:
        if (source + "/").startswith(directory + "/"):
            raise OSError(errno.EACCES, "it belongs to the local cluster itself", source)
        above = source.rstrip("/") + "/"
        if directory.startswith(above):
            _cover(os.path.join(target, directory[len(above) :]))


def _cover(path: str) -> None:
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=555,size=4k")
    elif os.path.exists(path):
        mount("/dev/null", path, None, MS_BIND)


def _open(name: str, *, inside: int | None = None, follow: bool = True) -> int:
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    return os.open(name, flags, dir_fd=inside)


def _open_exactly(path: str, *, inside: str = "/") -> int:
    """Open a path of which no part may be a symlink: one may have been put there since it was checked."""
    place = _open(inside)
    for part in filter(None, path.split("/")):
        above, place = place, _open(part, inside=place, follow=False)
        os.close(above)
        if stat.S_ISLNK(os.fstat(place).st_mode):
            os.close(place)
            raise OSError(errno.ELOOP, "the path has become a symlink since it was checked", path)
    return place


def mount_point(root: str, path: str, *, is_file: bool, owner: int = 0) -> str:
    """Find or make the path under ``root`` to mount on; symlinks stay inside the root.

    Each step is taken from an open directory, and no link is followed by the kernel: a volume's directories
    may be exchanged for links meanwhile, by another container, and nothing may be made where those lead.

    Args:
        owner: Of what is made, with no more rights than it has.
    """
    way, parts, hops = _Way(root, owner), [part for part in path.split("/") if part not in ("", ".")], 0
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

    def __init__(self, root: str, owner: int) -> None:
        self._owner = owner
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
            self._create(name, inside=self._open[-1], is_file=is_file)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EOVERFLOW):
                raise
            self._shadow()
            self._create(name, inside=self._open[-1], is_file=is_file)

    def _shadow(self) -> None:
        """Cover the last directory, a read-only one, by a writable one with the same entries."""
        original = self._open[-1]
        entries = list(os.scandir(f"/proc/self/fd/{original}"))
        _Root(self.path, self._owner).tmpfs(self.path, MS_NODEV, "mode=755", "size=64m")
        above = self._open[-2] if len(self._open) > 1 else None
        cover = _open(self._names[-1], inside=above, follow=False)
        for entry in entries:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), entry.name, dir_fd=cover)
                continue
            self._create(entry.name, inside=cover, is_file=not entry.is_dir())
            mount(entry.path, f"/proc/self/fd/{cover}/{entry.name}", None, MS_BIND | MS_REC)
        self._open[-1] = cover
        os.close(original)

    def _create(self, name: str, *, inside: int, is_file: bool) -> None:
        with _files_of(self._owner):
            if not is_file:
                os.mkdir(name, 0o755, dir_fd=inside)
                return
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=inside))


@contextlib.contextmanager
def _files_of(owner: int) -> Iterator[None]:
    """Create files as the container's root would: the runtime's own id is none that its volumes know."""
    set_file_ids(owner)
    try:
        yield
    finally:
        set_file_ids(0)
