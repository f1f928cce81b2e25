"""Start one container: namespaces, a root file system, no privileges, then the command.

Standard library only: the spawner runs it with ``python -S``, and the warm parent imports it too.
Which mounts a container gets is decided by the agent; here they are only carried out.
"""

import errno
import json
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from localkube.node.rootfs import build_root, enter_root
from localkube.node.syscalls import CLONE_NEWNS, CLONE_NEWPID, drop_privileges, setns, unshare


class LaunchError(Exception):
    """The container did not start; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


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
            os.chdir(order["cwd"])
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


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, 65536):
        chunks.append(chunk)
    return b"".join(chunks)
