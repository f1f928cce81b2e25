"""A container's root file system, with volumes mounted into it.

It consists of an image's layers below a writable one, or of the host's file system, read-only except mounts.

The kubelet decides on the mounts (``kubelet/pods/container_spec.py``); they are made here, in the mount
namespace of the container. Running containers may change their volumes meanwhile: so sources and mount points
are open descriptors (``path_resolution.py``), and a mount's flags are set before it is attached. Standard
library only.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable

from localkube.runtime.container_spec import ContainerSpec, LinuxSpec, MountSpec
from localkube.runtime.mounts import (
    READ_ONLY,
    SAFE,
    ContainerRoot,
    attach,
    clone,
    closing,
    cover,
    cover_open,
    open_own,
    restrict,
)
from localkube.runtime.path_resolution import EXACT, Identity, Resolution, identity, location, opened
from localkube.runtime.syscalls import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_UNBINDABLE,
    clone_tree,
    mount,
    move_mount,
    new_mount,
    pivot_root,
    unmount,
)

CONTROL_GROUPS = "/sys/fs/cgroup"
# Never bound from the host, wherever the root is.
OWN_DIRECTORIES = {"dev", "proc", "sys", "lost+found"}
OWN_MOUNTS = ("proc", "dev", "sys")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


# Paths that reveal or change the machine's state: the defaults of runc and containerd.
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


def build_root(spec: ContainerSpec, scratch: str, user_namespace: int | None = None) -> None:
    """Make the container's root file system.

    Args:
        scratch: The mount point of the new root; containers share it, each in its own mount namespace.
        user_namespace: The pod's; the mounts belong to the runtime's, so that the container cannot undo them.
    """
    make = _mount_layers if spec.root.of_image else _show_host
    make(spec, scratch, user_namespace)
    root = ContainerRoot(
        open_own(scratch), spec.linux.id_mapping.host_id, user_namespace, _hidden(spec.linux)
    )
    _fill(root, spec)
    root.close(readonly=spec.root.readonly)


def _fill(root: ContainerRoot, spec: ContainerSpec) -> None:
    if spec.root.of_image:
        for name in OWN_MOUNTS:
            _make_own_directory(root, name)
    else:
        _show_directories_of_host(root, spec)
    _mount_sys(root)
    _show_control_groups(root, spec.linux.cgroups_path)
    _make_devices(root, spec.linux.devices)
    covered = [path for path in MASKED_PATHS if not path.startswith("/proc/")]
    for path in (*covered, *(() if spec.root.of_image else spec.linux.masked_paths)):
        cover(root.directory, path)
    for entry in spec.mounts:
        _mount_entry(entry, root)
    # The working directory is created before the mounts that contain it become read-only.
    with root.mount_point(spec.process.cwd, is_file=False):
        pass


def enter_root(scratch: str) -> None:
    """Make ``scratch`` the root, with a /proc of the calling process's own namespace.

    /proc comes first: a user namespace may mount it only while an older one is still visible.
    """
    root = open_own(scratch)
    place = EXACT.open(root, "proc")
    proc = new_mount("proc", (), SAFE | MOUNT_ATTR_NOEXEC)
    move_mount(proc, place)
    for path in MASKED_PATHS:
        if path.startswith("/proc/"):
            cover(proc, path.removeprefix("/proc/"))
    for path in READ_ONLY_PATHS:
        with contextlib.suppress(FileNotFoundError):
            shown = EXACT.open(proc, path.removeprefix("/proc/"))
            attach(clone_tree(shown), shown, (READ_ONLY | MOUNT_ATTR_NOEXEC, True))
            os.close(shown)
    os.fchdir(root)
    for descriptor in (place, proc, root):
        os.close(descriptor)
    pivot_root(scratch)
    os.chdir("/")


def _hidden(linux: LinuxSpec) -> tuple[tuple[str, Identity], ...]:
    pairs = (inode.split(":") for inode in linux.masked_inodes)
    numbers = ((int(device), int(inode)) for device, inode in pairs)
    return tuple(zip(linux.masked_paths, numbers, strict=True))


def _mount_layers(spec: ContainerSpec, scratch: str, user_namespace: int | None) -> None:
    """Mount an image's layers below the container's own, or its copy of the image.

    All pods share the layers, with the ids of the image: a mount shifts them into the pod's range. Their
    names are relative, because the options of a mount are limited to a page.
    """
    root, place = spec.root, open_own(scratch)
    tree = clone(root.path, user_namespace)
    move_mount(tree, place)
    if not root.own:
        writable = open_own(root.writable)
        try:
            os.fchdir(tree)
            above = f"/proc/self/fd/{writable}"
            layers = ":".join(reversed(root.layers))
            options = f"lowerdir={layers},upperdir={above}/upper,workdir={above}/work"
            # Nothing has to reach the disk: each start of the container has a new upper layer.
            mount("overlay", f"/proc/self/fd/{tree}", "overlay", MS_NODEV, f"{options},userxattr,volatile")
        finally:
            os.chdir("/")
            os.close(writable)
    os.close(tree)
    os.close(place)


def _make_own_directory(root: ContainerRoot, name: str) -> None:
    """Open or create a directory at the top of the root.

    Raises:
        OSError: It is a symlink in the image, which would redirect the mount.
    """
    with root.mount_point(name, is_file=False) as place:
        is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
        named = os.stat(name, dir_fd=root.directory, follow_symlinks=False)
    if not is_directory or not stat.S_ISDIR(named.st_mode):
        raise OSError(errno.ENOTDIR, "it must be an ordinary directory in the image", f"/{name}")


def _show_host(spec: ContainerSpec, scratch: str, user_namespace: int | None) -> None:
    """Mount the tmpfs that shows the host.

    A mount point that the host lacks is created by mounting a tmpfs over its parent and binding the parent's
    entries into it, because a user namespace may not mount an overlay over the host's root.
    """
    place, owner = open_own(scratch), spec.linux.id_mapping.host_id
    tree = ContainerRoot(place, owner).tmpfs(MOUNT_ATTR_NODEV, "mode=755", "size=1g")
    attach(tree, place)
    mount(None, scratch, None, MS_UNBINDABLE)
    os.close(place)


def _show_directories_of_host(root: ContainerRoot, spec: ContainerSpec) -> None:
    """Bind the host's top-level directories, read-only."""
    covered = {entry.destination.strip("/") for entry in spec.mounts if not os.path.islink(entry.destination)}
    for name in sorted(set(os.listdir(spec.root.path)) - covered - OWN_DIRECTORIES):
        source = os.path.join(spec.root.path, name)
        kind = os.lstat(source).st_mode
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(source), name, dir_fd=root.directory)
        elif stat.S_ISDIR(kind):
            os.mkdir(name, dir_fd=root.directory)
            _bind_read_only(source, root.directory, name)
    for name in OWN_MOUNTS:
        os.mkdir(name, dir_fd=root.directory)


def _mount_sys(root: ContainerRoot) -> None:
    """Mount the /sys of the pod's own network; if that is refused, the host's, with its submounts."""
    with closing(EXACT.open(root.directory, "sys")) as place:
        try:
            tree = new_mount("sysfs", (), READ_ONLY | MOUNT_ATTR_NOEXEC)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EBUSY):
                raise
            _bind_read_only("/sys", place)
        else:
            attach(tree, place)


def _bind_read_only(source: str, place: int, name: str = "") -> None:
    """Bind a directory of the machine that no pod can change."""
    attach(clone(source), place, (READ_ONLY, True), name=name)


def _show_control_groups(root: ContainerRoot, files: Iterable[str]) -> None:
    """Show the container only its own cgroups, where programs look up their limits.

    Args:
        files: The spec's ``cgroups_path``. Version 1 has a directory for each hierarchy, to which names of
            controllers may link.
    """
    groups = [os.path.dirname(file) for file in files if file.startswith(CONTROL_GROUPS + "/")]
    if not groups:
        return
    with closing(EXACT.open(root.directory, CONTROL_GROUPS)) as place:
        if any(os.path.exists(f"{group}/cgroup.controllers") for group in groups):
            _bind_read_only(groups[0], place)
            return
        links = {
            entry.name: os.readlink(entry.path) for entry in os.scandir(CONTROL_GROUPS) if entry.is_symlink()
        }
        shown = root.tmpfs(SAFE | MOUNT_ATTR_NOEXEC, "mode=755", "size=64k")
        move_mount(shown, place)
    for group in groups:
        hierarchy = group.split("/")[4]
        os.mkdir(hierarchy, dir_fd=shown)
        _bind_read_only(group, shown, hierarchy)
        for name in (name for name, target in links.items() if target == hierarchy):
            os.symlink(hierarchy, name, dir_fd=shown)
    restrict(shown, READ_ONLY, recursive=False)
    os.close(shown)


def _make_devices(root: ContainerRoot, devices: Iterable[str]) -> None:
    """Make a /dev with these device nodes of the host, in a tmpfs of the container's own."""
    directory = root.tmpfs(0, "mode=755", "size=64k")
    with closing(EXACT.open(root.directory, "dev")) as place:
        move_mount(directory, place)
    for path in devices:
        try:
            kind, name = os.stat(path).st_mode, os.path.basename(path)
        except OSError:
            continue
        root.create(name, inside=directory, is_file=not stat.S_ISDIR(kind))
        attach(clone(path), directory, name=name)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, name, dir_fd=directory)
    for name in ("pts", "shm"):
        os.mkdir(name, dir_fd=directory)
    options = ("newinstance", "ptmxmode=0666", "mode=0620")
    attach(new_mount("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC), directory, name="pts")
    os.close(directory)


def _mount_entry(entry: MountSpec, root: ContainerRoot) -> None:
    """Make one of the specification's mounts."""
    if entry.type == "overlay":
        _mount_image(entry, root)
    elif entry.type == "merged":
        with opened(entry.source) as added, _target(entry, root, is_file=False) as target:
            merged = f"lowerdir={entry.destination}:/proc/self/fd/{added}"
            mount("overlay", f"/proc/self/fd/{target}", "overlay", MS_NODEV | MS_NOSUID | MS_RDONLY, merged)
    elif entry.type == "tmpfs":
        options = (option for option in entry.options if option != "ro")
        with _target(entry, root, is_file=False) as target:
            tree = root.tmpfs(MOUNT_ATTR_NODEV, *options)
            move_mount(tree, target)
        # Made read-only at the end, because mount points may still be created in it.
        root.covers.append((tree, entry.readonly))
    else:
        _bind(entry, root)


def _bind(entry: MountSpec, root: ContainerRoot) -> None:
    hidden = root.hidden if "masked" in entry.options else ()
    avoided = frozenset(inode for _, inode in hidden) if hidden else frozenset()
    with opened(entry.source, *entry.subpaths, hidden=avoided) as source:
        kind = os.fstat(source).st_mode
        target = _target(entry, root, is_file=not stat.S_ISDIR(kind)).descriptor
        root.volumes.append(target)
        tree = clone(source, root.user_namespace if "idmap" in entry.options else None)
        is_device = stat.S_ISCHR(kind) or stat.S_ISBLK(kind)
        attributes = MOUNT_ATTR_NOSUID | (0 if is_device else MOUNT_ATTR_NODEV)
        read_only = [(attributes | MOUNT_ATTR_RDONLY, "rro" in entry.options)] if entry.readonly else []
        if not hidden:
            attach(tree, target, (attributes, True), *read_only)
            return
        with closing(os.dup(tree)) as shown:
            attach(tree, target, (attributes, True), *read_only)
            _mask_within(location(source), shown, hidden)


def _target(entry: MountSpec, root: ContainerRoot, *, is_file: bool) -> closing:
    target = root.mount_point(entry.destination, is_file=is_file)
    if identity(target.descriptor) == identity(root.directory):
        target.close()
        raise OSError(errno.EINVAL, "nothing can be mounted on the root of a container", entry.destination)
    return target


def _mount_image(entry: MountSpec, root: ContainerRoot) -> None:
    """Mount an image read-only, or a file or directory of it, by its subpath."""
    (layers,) = (
        option.removeprefix("lowerdir=") for option in entry.options if option.startswith("lowerdir=")
    )
    # It is assembled at /proc, where nothing is mounted yet.
    with closing(EXACT.open(root.directory, "proc")) as staging:
        store = clone(entry.source, root.user_namespace)
        move_mount(store, staging)
    try:
        if ":" in layers:
            os.fchdir(store)
            options = f"lowerdir={layers},userxattr"
            mount("overlay", f"/proc/self/fd/{store}", "overlay", MS_NODEV | MS_RDONLY, options)
            whole = EXACT.open(root.directory, "proc")
        else:
            whole = EXACT.open(store, layers)
        tree, kind = _part_of_image(whole, entry.subpaths)
    finally:
        os.chdir("/")
        unmount(f"/proc/self/fd/{store}")
        os.close(store)
    with _target(entry, root, is_file=not stat.S_ISDIR(kind)) as target:
        attach(tree, target, (READ_ONLY, True))


def _part_of_image(whole: int, subpaths: Iterable[str]) -> tuple[int, int]:
    """Clone a file or directory of an image, without following symlinks; returns its mode as well."""
    for subpath in subpaths:
        above, whole = whole, Resolution(links=False, mounts=False).open(whole, subpath)
        os.close(above)
    try:
        return clone_tree(whole), os.fstat(whole).st_mode
    finally:
        os.close(whole)


def _mask_within(source: str, tree: int, hidden: Iterable[tuple[str, Identity]]) -> None:
    """Cover hidden directories in a mount of a directory above them.

    The directories between them become mounts of themselves, because the container cannot rename a mount.

    Args:
        source: The path of the mounted directory on the machine.

    Raises:
        OSError: A hidden directory has moved, so that it could be elsewhere in the mount.
    """
    above = source.rstrip("/") + "/"
    for path, inode in hidden:
        with opened(path) as directory:
            _check_is(directory, inode, path)
        if not path.startswith(above):
            continue
        *names, last = path.removeprefix(above).split("/")
        here = os.dup(tree)
        for name in names:
            with closing(here), closing(EXACT.open(here, name)) as below:
                here = clone_tree(below)
                move_mount(here, below)
        with closing(here), closing(EXACT.open(here, last)) as place:
            _check_is(place, inode, path)
            cover_open(place)


def _check_is(place: int, inode: Identity, path: str) -> None:
    if identity(place) != inode:
        raise OSError(errno.ESTALE, "the directory of the local clusters was moved meanwhile", path)
