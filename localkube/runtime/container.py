"""Start a container, and commands in it: namespaces, a root file system, no privileges, then the command.

Standard library only: ``init.py`` runs it with ``python -S``, and the forkserver imports it too.
"""

import errno
import fcntl
import json
import os
import signal
import socket
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from localkube.runtime.container_spec import ContainerSpec, LinuxSpec, ProcessSpec
from localkube.runtime.messages import close_all
from localkube.runtime.rootfs import build_root, enter_root
from localkube.runtime.syscalls import CLONE_NEWNS, CLONE_NEWPID, drop_privileges, setns, unshare

NEW_NAMESPACES = {"mount": CLONE_NEWNS, "pid": CLONE_NEWPID}


class ContainerStartError(Exception):
    """The container did not start; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


@dataclass(frozen=True)
class StartedProcess:
    """A process that runs: its pid as the caller sees it, and the master of its terminal, if it has one."""

    pid: int
    terminal: int | None = None


def start(
    spec: ContainerSpec, fds: dict[str, int], *, scratch: str, main: Callable[[], NoReturn] | None = None
) -> StartedProcess:
    """Start a container; its first process becomes a child of the runtime's PID 1, which reaps it.

    Args:
        fds: ``stdin``, ``stdout``, ``stderr``, and ``net``, ``uts``, ``ipc``: the pod's namespaces;
            ``pid`` if its containers share their processes.
        scratch: A directory on which the root is mounted.
        main: Called in place of the command, when the caller has already loaded it.

    Raises:
        ContainerStartError: With the stage that failed and a sentence.
    """
    return run_helper(lambda writer: _create(spec, fds, scratch, main, writer))


def execute(spec: ContainerSpec, fds: dict[str, int], *, container: int) -> StartedProcess:
    """Start the process of ``spec`` in a container that runs, in a session of its own.

    The kernel ends it with the container's first process, whose process namespace it shares.

    Args:
        spec: The container's, with the command as its process.
        fds: ``stdin``, ``stdout`` and ``stderr``; not used with a terminal.
        container: The pid of the container's first process, which has not been reaped.

    Raises:
        ContainerStartError: With the stage that failed and a sentence.
    """
    return run_helper(lambda writer: _join(spec, fds, container, writer))


def run_helper(helper: Callable[[int], NoReturn]) -> StartedProcess:
    """Run ``helper`` in a fork, which reports on the socket that it is given.

    It reports ``{"pid": …}`` of a process that it leaves behind, or a stage and a message. The socket ends
    when that process has executed its program.

    Raises:
        ContainerStartError: It reported a problem, or nothing.
    """
    reader, writer = socket.socketpair()
    child = os.fork()
    if child == 0:
        reader.close()
        helper(writer.detach())
    writer.close()
    try:
        answer, terminals = _read_all(reader)
    finally:
        reader.close()
        os.waitpid(child, 0)
    lines = [json.loads(line) for line in answer.splitlines()]
    problem = next((line for line in lines if "stage" in line), None)
    pid = next((line["pid"] for line in lines if "pid" in line), None)
    if problem or pid is None:
        close_all(terminals)
        problem = problem or {"stage": "sandbox", "message": "the process ended before it became a container"}
        raise ContainerStartError(problem["stage"], problem["message"])
    return StartedProcess(pid, terminals[0] if terminals else None)


def _create(
    spec: ContainerSpec, fds: dict[str, int], scratch: str, main: Callable | None, writer: int
) -> NoReturn:
    """Enter the pod's namespaces, build the root file system, and leave a child there."""
    try:
        with stage(writer, "sandbox"):
            os.setsid()
            enter_limits(spec.linux)
            for name in ("net", "uts", "ipc", "pid"):
                if name in fds:
                    setns(fds[name])
            unshare(sum(NEW_NAMESPACES[name] for name in spec.linux.namespaces))
        with stage(writer, "mount"):
            build_root(spec, scratch)
        pid = os.fork()
        if pid == 0:
            with stage(writer, "mount"):
                enter_root(scratch)
            become(spec.process, fds, writer, main)
        report_pid(writer, pid)
    finally:
        os._exit(0)


def _join(spec: ContainerSpec, fds: dict[str, int], container: int, writer: int) -> NoReturn:
    """Enter the container's namespaces and leave a child there."""
    try:
        with stage(writer, "sandbox"):
            enter_limits(spec.linux)
            # The mount namespace comes last: behind it /proc is the container's.
            paths = [f"/proc/{container}/ns/{name}" for name in ("net", "uts", "ipc", "pid", "mnt")]
            for space in [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]:
                setns(space)
        pid = os.fork()
        if pid == 0:
            if not spec.process.terminal:  # a terminal makes its own
                os.setsid()
            become(spec.process, fds, writer)
        report_pid(writer, pid)
    finally:
        os._exit(0)


def report_pid(writer: int, pid: int) -> None:
    os.write(writer, json.dumps({"pid": pid}).encode() + b"\n")


def become(
    process: ProcessSpec, fds: dict[str, int], writer: int, main: Callable | None = None, program: str = ""
) -> NoReturn:
    """Execute the command of ``process``, without privileges, in the namespaces of the caller.

    Args:
        fds: Its standard streams, unless it has a terminal.
        writer: Reports a failure, and the master of the terminal.
        program: The file to execute, if it is not to be searched for.
    """
    try:
        with stage(writer, "exec"):
            os.umask(0o022)
            if process.terminal:
                master = take_terminal()
                with socket.socket(fileno=os.dup(writer)) as report:
                    socket.send_fds(report, [b"{}\n"], [master])
                os.close(master)
            else:
                for number, name in enumerate(("stdin", "stdout", "stderr")):
                    os.dup2(fds[name], number)
            os.chdir(process.cwd)
            if process.capabilities is not None:
                drop_privileges(process.capabilities)
            reset_signals()
            if main is None:
                env = process.environment
                os.execve(program or find_program(process.args[0], env, process.cwd), process.args, env)
        os.closerange(3, 1 << 20)
        main()
    finally:
        os._exit(126)


def take_terminal() -> int:
    """Lead a new session with a new terminal as standard streams; return the terminal's master.

    It is opened inside the container, so that ``tty`` names a device that exists there.
    """
    os.setsid()
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.close(slave)
    return master


def enter_limits(linux: LinuxSpec) -> None:
    """Move this process, and so all that it starts, into its control groups or onto its cores."""
    for path in linux.cgroups_path:
        with open(path, "w") as file:
            file.write("0")
    if cpus := linux.resources.cpu.cpus:
        os.sched_setaffinity(0, map(int, cpus.split(",")))


def reset_signals() -> None:
    """Give every signal its default action and block none, as a new program expects."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
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
        report = {"stage": self._name, "message": message if not message else _sentence(error, message)}
        os.write(self._writer, json.dumps(report).encode() + b"\n")
        os._exit(126)


def _sentence(error: BaseException, message: str) -> str:
    name = getattr(error, "filename", None)
    return f"{message}: {os.fsdecode(name)}" if name and os.fsdecode(name) not in message else message


def find_program(name: str, env: dict[str, str], cwd: str) -> str:
    """Search for the program as container runtimes do.

    Raises:
        OSError: In their words, ``exec: "nosuch": executable file not found in $PATH``.
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


def _read_all(reader: socket.socket) -> tuple[bytes, list[int]]:
    chunks, descriptors = [], []
    while True:
        chunk, received, _, _ = socket.recv_fds(reader, 65536, 4, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not chunk:
            return b"".join(chunks), descriptors
        chunks.append(chunk)
