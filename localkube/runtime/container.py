"""Start one container: namespaces, a root file system, no privileges, then the command.

Standard library only: the runtime runs it with ``python -S``, and the warm parent imports it too.
Which mounts a container gets is decided by the agent; here they are only carried out.
"""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from localkube.runtime.pty import take_terminal
from localkube.runtime.rootfs import build_root, enter_root
from localkube.runtime.syscalls import CLONE_NEWNS, CLONE_NEWPID, drop_privileges, setns, unshare


class LaunchError(Exception):
    """The container did not start; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


@dataclass(frozen=True)
class Launched:
    """A process that runs: its id as the caller sees it, and the master of its terminal, if it has one."""

    pid: int
    terminal: int | None = None


def launch(
    order: dict[str, Any], fds: dict[str, int], main: Callable[[], NoReturn] | None = None
) -> Launched:
    """Start the container of ``order``.

    The process becomes a child of the site's PID 1, which reaps it.

    Args:
        order: ``argv``, ``env``, ``cwd``, ``tty``, ``root`` (see ``build_root``) and ``scratch`` (a mount
            point); ``groups`` or ``cores``, see ``enter_limits``.
        fds: ``stdin``, ``stdout``, ``stderr``, and ``net``, ``uts``, ``ipc``: the pod's namespaces;
            ``pid`` where its containers share the one of processes.
        main: Called in place of the command, when the caller has already loaded it.

    Raises:
        LaunchError: With the stage that failed and a sentence.
    """
    return launched(lambda writer: _helper(order, fds, main, writer))


def launched(helper: Callable[[int], NoReturn]) -> Launched:
    """Run ``helper`` in a fork, and return what it reports on the socket that it is given.

    It reports ``{"pid": …}`` of a process that it leaves behind, or a stage and a message. The socket ends
    when that process has executed its program.

    Raises:
        LaunchError: It reported a problem, or nothing.
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
        for terminal in terminals:
            os.close(terminal)
        problem = problem or {"stage": "sandbox", "message": "the process ended before it became a container"}
        raise LaunchError(problem["stage"], problem["message"])
    return Launched(pid, terminals[0] if terminals else None)


def _helper(order: dict, fds: dict, main: Callable | None, writer: int) -> NoReturn:
    """Enter the pod's namespaces and leave a child there."""
    try:
        with stage(writer, "sandbox"):
            os.setsid()
            enter_limits(order)
            for name in ("net", "uts", "ipc"):
                setns(fds[name])
            if "pid" in fds:
                setns(fds["pid"])
            unshare(CLONE_NEWNS | (0 if "pid" in fds else CLONE_NEWPID))
        with stage(writer, "mount"):
            build_root(order["root"], order["scratch"])
        pid = os.fork()
        if pid == 0:
            _container(order, fds, main, writer)
        os.write(writer, json.dumps({"pid": pid}).encode() + b"\n")
    finally:
        os._exit(0)


def _container(order: dict, fds: dict, main: Callable | None, writer: int) -> NoReturn:
    """Be PID 1 of the container."""
    with stage(writer, "mount"):
        enter_root(order["scratch"])
    become(order, fds, writer, main)


def become(order: dict, fds: dict, writer: int, main: Callable | None = None) -> NoReturn:
    """Execute the command of ``order``, without privileges, in the namespaces that this process is in."""
    try:
        with stage(writer, "exec"):
            os.umask(0o022)
            if order.get("tty"):
                master = take_terminal()
                with socket.socket(fileno=os.dup(writer)) as report:
                    socket.send_fds(report, [b"{}\n"], [master])
                os.close(master)
            else:
                for number, name in enumerate(("stdin", "stdout", "stderr")):
                    os.dup2(fds[name], number)
            os.chdir(order["cwd"])
            if not order.get("plain"):
                drop_privileges()
            reset_signals()
            if main is None:
                program = order.get("program") or find_program(order["argv"][0], order["env"], order["cwd"])
                os.execve(program, order["argv"], order["env"])
        os.closerange(3, 1 << 20)
        main()
    finally:
        os._exit(126)


def enter_limits(order: dict[str, Any]) -> None:
    """Move this process, and so all that it starts, into the control groups or onto the cores of an order."""
    for path in order.get("groups", ()):
        with open(path, "w") as file:
            file.write("0")
    if order.get("cores"):
        os.sched_setaffinity(0, order["cores"])


def reset_signals() -> None:
    """Handle and block no signal, as a program expects that has just been started."""
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


def _read_all(reader: socket.socket) -> tuple[bytes, list[int]]:
    chunks, descriptors = [], []
    while True:
        chunk, received, _, _ = socket.recv_fds(reader, 65536, 4, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not chunk:
            return b"".join(chunks), descriptors
        chunks.append(chunk)
