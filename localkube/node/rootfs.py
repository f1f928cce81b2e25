"""A container's root file system: the host's, read-only, with writable places and volumes mounted into it.

Which mounts a container gets is decided by the agent (``containers.py``); here they are only carried out, in
a mount namespace that the container has for itself. Standard library only.
"""

import errno
import os
import stat
from typing import Any

from localkube.node.syscalls import (
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

DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def build_root(plan: dict[str, Any], scratch: str) -> None:
    """Make the container's root file system.

    The root is a tmpfs; the host's top-level directories are bound into it, read-only. A mount point that
    the host lacks is made by putting a tmpfs over its parent and binding the parent's entries into that,
    because an overlay over the host's root is refused in a user namespace.

    Args:
        plan: ``skip``: top-level names that are not taken from the host; ``devices``: names below /dev
            that are; ``hide``: paths covered by an empty directory; ``read_only``: the root as well;
            ``mounts``: dicts of ``kind`` (bind, tmpfs), ``source``, ``target``, ``read_only``, ``size``
            (bytes) and ``mode``; ``directory``: the working directory, made where it is missing.
        scratch: A directory on which the new root is mounted; containers share it without seeing each other.
    """
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1g")
    mount(None, scratch, None, MS_UNBINDABLE)
    for name in os.listdir("/"):
        _take_from_host(name, plan, scratch)
    os.mkdir(scratch + "/proc")
    _make_devices(scratch + "/dev", plan["devices"])
    for hidden in plan.get("hide", ()):
        if os.path.isdir(scratch + hidden):
            mount("tmpfs", scratch + hidden, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=555,size=4k")
    for entry in plan["mounts"]:
        _mount_entry(entry, scratch)
    # The working directory comes before the root is read-only, and may lie below one that is.
    mount_point(scratch, plan["directory"], is_file=False)
    if plan.get("read_only"):
        mount(None, scratch, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def enter_root(scratch: str) -> None:
    """Make ``scratch`` the root, with a /proc of the calling process's own namespace.

    /proc comes first: a user namespace may mount it only while an older one is still to be seen.
    """
    mount("proc", scratch + "/proc", "proc", PROC_FLAGS)
    os.chdir(scratch)
    pivot_root(scratch)
    os.chdir("/")


def _take_from_host(name: str, plan: dict, scratch: str) -> None:
    source, target = "/" + name, scratch + "/" + name
    if name in plan["skip"] or name in ("dev", "proc"):
        return
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.mkdir(target)
        mount(source, target, None, MS_BIND | MS_REC)
        make_read_only(target)


def _make_devices(directory: str, names: list[str]) -> None:
    """Make a /dev with the host's device nodes of these names, and nothing of the host's to write on."""
    os.mkdir(directory)
    mount("tmpfs", directory, "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in names:
        if os.path.exists("/dev/" + name):
            is_file = not os.path.isdir("/dev/" + name)
            target = mount_point(directory, name, is_file=is_file)
            mount("/dev/" + name, target, None, MS_BIND | MS_REC)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, f"{directory}/{name}")
    os.mkdir(directory + "/pts")
    mount(
        "devpts", directory + "/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    os.mkdir(directory + "/shm")


def _mount_entry(entry: dict, scratch: str) -> None:
    is_file = entry["kind"] == "bind" and not os.path.isdir(entry["source"])
    target = mount_point(scratch, entry["target"], is_file=is_file)
    if entry["kind"] == "tmpfs":
        size = f",size={entry['size']}" if entry.get("size") else ""
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={entry.get('mode', '755')}{size}")
        return
    mount(entry["source"], target, None, MS_BIND | MS_REC)
    if entry.get("read_only"):
        make_read_only(target)


def mount_point(root: str, path: str, *, is_file: bool) -> str:
    """Return the path under ``root`` to mount on, made where it is missing; symlinks stay inside the root."""
    current, parts, hops = root, [part for part in path.split("/") if part not in ("", ".")], 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            current = os.path.dirname(current) if current != root else root
            continue
        following = current + "/" + part
        try:
            mode = os.lstat(following).st_mode
        except FileNotFoundError:
            _make(current, following, is_file=is_file and not parts)
        else:
            if stat.S_ISLNK(mode):
                hops += 1
                if hops > 40:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                link = os.readlink(following)
                current = root if link.startswith("/") else current
                parts = [step for step in link.split("/") if step not in ("", ".")] + parts
                continue
        current = following
    return current


def _make(parent: str, path: str, *, is_file: bool) -> None:
    try:
        _create(path, is_file=is_file)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        _shadow(parent)
        _create(path, is_file=is_file)


def _create(path: str, *, is_file: bool) -> None:
    if is_file:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    else:
        os.mkdir(path, 0o755)


def _shadow(directory: str) -> None:
    """Cover a read-only directory by a writable one with the same entries."""
    original = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    entries = list(os.scandir(directory))
    mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64m")
    for entry in entries:
        target = os.path.join(directory, entry.name)
        source = f"/proc/self/fd/{original}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(source), target)
            continue
        _create(target, is_file=not entry.is_dir())
        mount(source, target, None, MS_BIND | MS_REC)
    os.close(original)
