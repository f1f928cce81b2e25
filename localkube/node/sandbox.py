"""Start one container: namespaces, a root file system, no privileges, then the command.

Standard library only: the spawner runs it with ``python -S``, and the warm parent imports it too.
Which mounts a container gets is decided by the agent; here they are only carried out.
"""

import ctypes
import errno
import json
import os
import signal
import stat
from collections.abc import Callable
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE = 16384, 1 << 17, 1 << 18, 1 << 19
MNT_DETACH = 2
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155, 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = -100, 0x8000, 1, 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_VERSION_3 = 0x20080522
# The capabilities that container engines leave to a container by default.
KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
LAST_CAPABILITY = 63

DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}

_libc = ctypes.CDLL(None, use_errno=True)
if os.uname().machine == "aarch64":
    SYS_PIVOT_ROOT = 41


class LaunchError(Exception):
    """The container did not start; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int = 0) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3])
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def die_with_parent() -> None:
    """Ask the kernel for a SIGKILL when the parent ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only; before Linux 5.12 only the mount itself."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.sizeof(attributes)
    )
    if result and ctypes.get_errno() == errno.ENOSYS:
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    else:
        _check(result, f"make {target} read-only")


def drop_privileges() -> None:
    """Keep what container engines keep, for good: bounding set, permitted, effective, inheritable."""
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in KEPT_CAPABILITIES:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    low = sum(1 << bit for bit in KEPT_CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


def launch(order: dict[str, Any], fds: dict[str, int], main: Callable[[], NoReturn] | None = None) -> int:
    """Start the container of ``order`` and return its process id as the caller sees it.

    The process becomes a child of the site's PID 1, which reaps it.

    Args:
        order: ``argv``, ``env``, ``cwd``, ``root`` (see ``build_root``), ``scratch`` (a mount point).
        fds: ``stdin``, ``stdout``, ``stderr``, and ``net``, ``uts``, ``ipc``: the pod's namespaces.
        main: Called in place of the command, when the caller has already loaded it.

    Raises:
        LaunchError: With the stage that failed and a sentence.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    helper = os.fork()
    if helper == 0:
        os.close(reader)
        _helper(order, fds, main, writer)
    os.close(writer)
    try:
        answer = _read_all(reader)
    finally:
        os.close(reader)
        os.waitpid(helper, 0)
    lines = [json.loads(line) for line in answer.splitlines()]
    problem = next((line for line in lines if "stage" in line), None)
    if problem or not lines:
        problem = problem or {"stage": "sandbox", "message": "the process ended before it became a container"}
        raise LaunchError(problem["stage"], problem["message"])
    return lines[0]["pid"]


def _helper(order: dict, fds: dict, main: Callable | None, writer: int) -> NoReturn:
    """Enter the pod's namespaces and leave a child there."""
    try:
        with _stage(writer, "sandbox"):
            os.setsid()
            for name in ("net", "uts", "ipc"):
                setns(fds[name])
            unshare(CLONE_NEWNS | CLONE_NEWPID)
        with _stage(writer, "mount"):
            build_root(order["root"], order["scratch"])
        pid = os.fork()
        if pid == 0:
            _container(order, fds, main, writer)
        os.write(writer, json.dumps({"pid": pid}).encode() + b"\n")
    finally:
        os._exit(0)


def _container(order: dict, fds: dict, main: Callable | None, writer: int) -> NoReturn:
    """Be PID 1 of the container."""
    try:
        with _stage(writer, "mount"):
            enter_root(order["scratch"])
        with _stage(writer, "exec"):
            os.umask(0o022)
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                os.dup2(fds[name], number)
            _change_directory(order["cwd"])
            drop_privileges()
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                if signal.getsignal(number) is not None:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            if main is None:
                program = find_program(order["argv"][0], order["env"], order["cwd"])
                os.execve(program, order["argv"], order["env"])
        os.closerange(3, 1 << 20)
        main()
    finally:
        os._exit(126)


class _stage:
    """Report an OSError on the pipe, with the stage in which it happened, and end the process."""

    def __init__(self, writer: int, name: str) -> None:
        self._writer, self._name = writer, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        report = {"stage": self._name, "message": message if not message else _sentence(error, message)}
        os.write(self._writer, json.dumps(report).encode() + b"\n")
        os._exit(126)


def _sentence(error: BaseException, message: str) -> str:
    name = getattr(error, "filename", None)
    return f"{message}: {os.fsdecode(name)}" if name and os.fsdecode(name) not in message else message


def find_program(name: str, env: dict[str, str], cwd: str) -> str:
    """Return the path that a container runtime would execute for ``name``.

    Raises:
        OSError: In the runtime's words, ``exec: "nosuch": executable file not found in $PATH``.
    """
    if "/" in name:
        path = os.path.join(cwd, name)
        if not os.path.exists(path):
            raise OSError(errno.ENOENT, f'exec: "{name}": stat {name}: no such file or directory')
        if os.path.isdir(path) or not os.access(path, os.X_OK):
            raise OSError(errno.EACCES, f'exec: "{name}": permission denied')
        return path
    for directory in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise OSError(errno.ENOENT, f'exec: "{name}": executable file not found in $PATH')


def _change_directory(path: str) -> None:
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
    os.chdir(path)


def build_root(plan: dict[str, Any], scratch: str) -> None:
    """Make the container's root file system.

    The root is a tmpfs; the host's top-level directories are bound into it, read-only. A mount point that
    the host lacks is made by putting a tmpfs over its parent and binding the parent's entries into that,
    because an overlay over the host's root is refused in a user namespace.

    Args:
        plan: ``skip``: top-level names that are not taken from the host; ``devices``: names below /dev
            that are; ``hide``: paths covered by an empty directory; ``read_only``: the root as well;
            ``mounts``: dicts of ``kind`` (bind, tmpfs), ``source``, ``target``, ``read_only``, ``size``
            (bytes) and ``mode``.
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
    if plan.get("read_only"):
        mount(None, scratch, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def enter_root(scratch: str) -> None:
    """Make ``scratch`` the root, with a /proc of the calling process's own namespace.

    /proc comes first: a user namespace may mount it only while an older one is still to be seen.
    """
    mount("proc", scratch + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(scratch)
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    unmount(".")
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


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, 65536):
        chunks.append(chunk)
    return b"".join(chunks)
