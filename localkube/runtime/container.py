"""Start a container, and commands in it: namespaces, a root file system, no privileges, then the command.

Standard library only: ``init.py`` runs it with ``python -S``, and the forkserver imports it too.
"""

import base64
import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import termios
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from localkube.runtime.container_spec import (
    ContainerSpec,
    LinuxIdMapping,
    ProcessSpec,
    UserSpec,
)
from localkube.runtime.processes import set_oom_score, write_file
from localkube.runtime.rootfs import build_root, enter_root
from localkube.runtime.syscalls import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    filter_system_calls,
    limit_capabilities,
    reset_reserved_signals,
    set_capabilities,
    set_dumpable,
    setns,
    unshare,
)
from localkube.runtime.user_namespace import limit_processes, limit_resources, new_user_namespace

SIGNALS = tuple(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
NEW_NAMESPACES = {"mount": CLONE_NEWNS, "pid": CLONE_NEWPID}


class ContainerStartError(Exception):
    """The container did not start; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


def create(
    spec: ContainerSpec,
    fds: dict[str, int],
    scratch: str,
    main: Callable[..., Any] | None,
    writer: int,
    *,
    pid: int = 0,
) -> NoReturn:
    """Enter the pod's namespaces, build the root file system, and leave the container's first process there.

    It becomes a child of the runtime's PID 1, which reaps it.

    Args:
        fds: ``stdin``, ``stdout``, ``stderr``, and ``user``, ``net``, ``uts``, ``ipc``: the pod's
            namespaces; ``pid`` if its containers share their processes.
        scratch: A directory on which the root is mounted.
        main: Called in place of the command, when the caller has already loaded it.
        writer: The socket on which its pid is reported, or the failed stage and a message (``launcher.py``).
        pid: The caller's, if it is the first process of its PID namespace: it then becomes the container's.
    """
    try:
        with stage(writer, "sandbox"):
            fds = fds | _renumbered(spec)
            _leave_host(spec, fds, writer)
            for name in ("net", "uts", "ipc"):
                setns(fds[name])
            if "pid" in fds:
                setns(fds["pid"])
            existing = {"pid"} if pid else set()
            unshare(sum(NEW_NAMESPACES[name] for name in set(spec.linux.namespaces) - existing))
        with stage(writer, "mount"):
            build_root(spec, scratch, fds.get("user"))
        forked = 0 if pid else os.fork()
        if pid or forked:
            report_pid(writer, pid or forked)
        if not forked:
            if not spec.process.terminal:  # take_terminal starts the session
                os.setsid()
            with stage(writer, "mount"):
                enter_root(scratch)
            become(spec.process, fds, writer, main, seccomp=spec.linux.seccomp, own_mounts=True)
    finally:
        os._exit(0)


def join(spec: ContainerSpec, fds: dict[str, int], container: int, writer: int) -> NoReturn:
    """Enter a container's namespaces and leave a process there, in a session of its own.

    The kernel ends it with the container's first process, whose PID namespace it shares.

    Args:
        spec: The container's, with the command as its process.
        fds: ``stdin``, ``stdout`` and ``stderr``, not used with a terminal; ``container``, a pidfd.
        container: The pid of the container's first process.
        writer: The same as in ``create``.
    """
    try:
        with stage(writer, "sandbox"):
            _leave_host(spec, fds, writer)
            # The mount namespace comes last, as /proc is the container's from then on. The child enters the
            # user namespace, and has the runtime's privileges until then.
            names = ("user", "net", "uts", "ipc", "pid", "mnt")
            spaces = {
                name: os.open(f"/proc/{container}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names
            }
            fds = fds | {"user": spaces.pop("user")}
            # It has not ended, so the pid was not reused.
            signal.pidfd_send_signal(fds["container"], 0)
            for space in spaces.values():
                setns(space)
        pid = os.fork()
        if pid == 0:
            if not spec.process.terminal:  # take_terminal starts the session
                os.setsid()
            become(spec.process, fds, writer, seccomp=spec.linux.seccomp)
        report_pid(writer, pid)
    finally:
        os._exit(0)


def has_own_processes(spec: ContainerSpec) -> bool:
    """Check whether the first process can be forked directly into the container's PID namespace.

    It cannot if it needs a user namespace of its own, whose ids are mapped from outside.
    """
    return "pid" in spec.linux.namespaces and not _is_renumbered(spec)


def _is_renumbered(spec: ContainerSpec) -> bool:
    user = spec.process.user
    return spec.linux.id_mapping.size == 1 and (user.uid, user.gid) != (0, 0)


def _renumbered(spec: ContainerSpec) -> dict[str, int]:
    """With a single host id, create a user namespace that maps it to the uid and gid of the process."""
    if not _is_renumbered(spec):
        return {}
    user, owned = spec.process.user, spec.linux.id_mapping.host_id
    users, groups = LinuxIdMapping(user.uid, owned), LinuxIdMapping(user.gid, owned)
    return {"user": new_user_namespace(users, groups, of_pod=True)}


def _leave_host(spec: ContainerSpec, fds: dict[str, int], writer: int) -> None:
    """Drop what a pod must not reach, before this process enters it.

    Its memory becomes unreadable, and it keeps no descriptors except the container's own. The container's
    user owns its pipes, and has the groups that its devices require.
    """
    linux, user = spec.linux, spec.process.user
    enter_limits(spec)
    set_dumpable(False)
    close_others({*fds.values(), writer})
    if not linux.id_mapping.host_id:
        limit_resources()
    if linux.id_mapping.size > 1:
        first = linux.id_mapping.host_id
        for name in ("stdin", "stdout", "stderr"):
            if name in fds and stat.S_ISFIFO(os.fstat(fds[name]).st_mode):
                os.fchown(fds[name], first + user.uid, first + user.gid)
        groups = [first + group for group in user.additional_gids]
        os.setgroups(sorted({*_device_groups(linux.devices), *groups}))


def close_others(keep: Iterable[int]) -> None:
    """Close every descriptor but these and the standard streams."""
    first = 3
    for descriptor in sorted({number for number in keep if number >= 3}):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 1 << 20)


def _device_groups(devices: Iterable[str]) -> list[int]:
    """List the groups of devices that other users cannot open, such as ``render``."""
    stats = []
    for path in devices:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            is_directory = stat.S_ISDIR(status.st_mode)
            stats += [entry.stat() for entry in os.scandir(path)] if is_directory else [status]
    return sorted(
        {
            status.st_gid
            for status in stats
            if stat.S_ISCHR(status.st_mode) and status.st_mode & 0o066 == 0o060
        }
    )


def report_pid(writer: int, pid: int) -> None:
    os.write(writer, b'{"pid": %d}\n' % pid)


def become(
    process: ProcessSpec,
    fds: dict[str, int],
    writer: int,
    main: Callable[..., Any] | None = None,
    program: str = "",
    seccomp: str = "",
    own_mounts: bool = False,
) -> NoReturn:
    """Execute the command of ``process``, without privileges, in the namespaces of the caller.

    Args:
        fds: Its standard streams, unless it has a terminal, and ``user``, the pod's user namespace.
        writer: Reports a failure, and the master of the terminal.
        program: The file to execute; by default it is searched for in PATH.
        seccomp: The filter of its system calls, see ``LinuxSpec``.
        own_mounts: The process has CAP_SYS_ADMIN, and gets a mount namespace that its user namespace owns, in
            which it cannot undo the runtime's mounts.
    """
    try:
        with stage(writer, "exec"):
            if "user" in fds:
                setns(fds["user"])
                _become_root()
                if own_mounts and "CAP_SYS_ADMIN" in (process.capabilities or ()):
                    unshare(CLONE_NEWNS)
                set_dumpable(False)  # the change of user has reset it to fs.suid_dumpable
            if process.terminal:
                master = take_terminal(process.user.uid)
                with socket.socket(fileno=os.dup(writer)) as report:
                    socket.send_fds(report, [b"{}\n"], [master])
                os.close(master)
            else:
                for number, name in enumerate(("stdin", "stdout", "stderr")):
                    os.dup2(fds[name], number)
            os.chdir(process.cwd)
            if process.capabilities is not None:
                limit_capabilities(process.capabilities, no_new_privileges=process.no_new_privileges)
            reset_signals()
            if seccomp:
                filter_system_calls(base64.b64decode(seccomp))
            if "user" in fds:
                limit_processes()  # in this namespace, the kernel counts the pod's alone
                _become_user(process.user)
            if process.capabilities is not None:
                # The kernel itself drops them only when a process stops being root, or executes a program.
                set_capabilities(process.capabilities if os.geteuid() == 0 else ())
            if main is None:
                env = process.environment
                os.execve(program or find_program(process.args[0], env, process.cwd), process.args, env)
            set_dumpable(True)  # as after an exec: the process has no secrets but the container's
        os.closerange(3, 1 << 20)
        main()
    finally:
        os._exit(126)


def _become_root() -> None:
    """Take the ids of the user namespace's root, unless its only id has another number."""
    try:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _become_user(user: UserSpec) -> None:
    """Take the ids of the container's user; unless that is root, the kernel drops all capabilities."""
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    set_dumpable(False)


def take_terminal(uid: int = 0) -> int:
    """Start a session with a new controlling terminal as standard streams; return the terminal's master.

    It is opened inside the container, so that ``tty`` names a device of the container, owned by ``uid``.
    """
    os.setsid()
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    if os.fstat(slave).st_uid != uid:
        os.fchown(slave, uid, -1)
    for number in range(3):
        os.dup2(slave, number)
    os.close(slave)
    return master


def enter_limits(spec: ContainerSpec) -> None:
    """Move this process, and so its descendants, into the container's cgroups or onto its cores."""
    linux = spec.linux
    set_oom_score(spec.process.oom_score_adj)
    for path in linux.cgroups_path:
        write_file(path, b"0")
    if linux.cpus:
        os.sched_setaffinity(0, map(int, linux.cpus.split(",")))


def reset_signals() -> None:
    """Give every signal its default action and block none, as a new program expects."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) not in (None, signal.SIG_DFL):
            signal.signal(number, signal.SIG_DFL)
    reset_reserved_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


class stage:
    """Report an OSError on the pipe, with the stage in which it happened, and end the process."""

    def __init__(self, writer: int, name: str) -> None:
        self._writer, self._name = writer, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        report = {"stage": self._name, "message": message if not message else _with_path(error, message)}
        os.write(self._writer, json.dumps(report).encode() + b"\n")
        os._exit(126)


def _with_path(error: BaseException, message: str) -> str:
    name = getattr(error, "filename", None)
    return f"{message}: {os.fsdecode(name)}" if name and os.fsdecode(name) not in message else message


def find_program(name: str, env: dict[str, str], cwd: str) -> str:
    """Search for the program as container runtimes do."""
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
