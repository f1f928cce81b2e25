"""Plain mode's half of the runtime: containers without namespaces, as processes of the machine.

What a PID namespace would do is done with the kernel's subreapers: a container's first process adopts what
its descendants leave behind, and when it ends they all fall to the runtime, which ends them. What the other
namespaces and the mounts would do, the preload library (``preload/``) does inside the container's programs.

Standard library only: the runtime runs it with ``python -S``, and the warm parent imports it too.
"""

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from localkube.runtime import syscalls
from localkube.runtime.container import (
    Launched,
    LaunchError,
    become,
    enter_limits,
    find_program,
    launched,
    stage,
)

ADOPTED_SECONDS = 5.0


def enter(settings: dict[str, Any]) -> None:
    """Become the process to which everything that is left behind falls, and which ends with its parent."""
    parent = os.getppid()
    syscalls.adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    syscalls.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        _end()


def _end(*_: object) -> NoReturn:
    """End every process below this one, and this one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_children()
    os._exit(0)


def end_children(besides: Iterable[int] = ()) -> None:
    """End every process below this one; what one leaves behind falls to this process with its end."""
    while found := set(children()) - set(besides):
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, 0)


def children() -> list[int]:
    """Return the processes whose parent is this one."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return [pid for pid in _pids() if _parent(pid) == os.getpid()]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def end_strays(known: Iterable[int]) -> None:
    """End what containers that have ended left behind: children that nobody started here."""
    for pid in set(children()) - set(known):
        os.kill(pid, signal.SIGKILL)


def unplug_node(order: dict[str, Any]) -> None:
    """Do nothing for a node that is switched off, whose processes end; refuse to isolate one whose run on."""
    if order.get("isolate"):
        message = "a node cannot be isolated in plain mode: its pods are on this machine's own network"
        raise LaunchError("sandbox", message)


def launch(
    order: dict[str, Any], fds: dict[str, int], main: Callable[[], NoReturn] | None = None
) -> Launched:
    """Start the container of ``order``; the process becomes a child of the runtime, whoever calls.

    Args:
        order: ``argv``, ``env``, ``cwd``, ``tty``, ``groups`` or ``cores`` as for ``sandbox.launch``;
            ``spawner`` (its process id), and ``plain``: ``pod`` (the file that describes the pod to the
            preload library), ``cwd`` (the real one) and ``paths`` (pairs of seen and real ones).
        fds: ``stdin``, ``stdout``, ``stderr``.
        main: Called in place of the command, when the caller has already loaded it.

    Raises:
        LaunchError: With the stage that failed and a sentence.
    """
    return launched(lambda writer: _helper(order, fds, writer, main, first=True))


def join(order: dict[str, Any], fds: dict[str, int], *, container: int) -> Launched:
    """Start a command in a running container: one more process of its pod, which the runtime ends with it.

    Args:
        order: As for ``launch``.
        fds: ``stdin``, ``stdout`` and ``stderr``; not used with a terminal.
        container: The process id of the container's first process.

    Raises:
        LaunchError: With the stage that failed and a sentence.
    """
    return launched(lambda writer: _helper(order, fds, writer, None, first=False))


def _helper(order: dict, fds: dict, writer: int, main: Callable | None, *, first: bool) -> NoReturn:
    """Leave a child behind, which falls to the runtime."""
    try:
        with stage(writer, "sandbox"):
            enter_limits(order)
        pid = os.fork()
        if pid == 0:
            _process(order, fds, writer, main, first=first)
        os.write(writer, json.dumps({"pid": pid}).encode() + b"\n")
    finally:
        os._exit(0)


def _process(order: dict, fds: dict, writer: int, main: Callable | None, *, first: bool) -> NoReturn:
    with stage(writer, "sandbox"):
        if not order.get("tty"):  # a terminal makes its own session
            os.setsid()
        _await_adoption(order["spawner"])
        syscalls.die_with_parent()
        if first:
            syscalls.adopt_orphans()
    with stage(writer, "exec"):
        if main is None:
            order = order | {"cwd": order["plain"]["cwd"], "program": _program(order)}
        else:
            _enter_pod(order["plain"]["pod"])
    become(order, fds, writer, main)


def _program(order: dict) -> str:
    """Return the file to execute; errors name it as the pod does."""
    name = order["argv"][0]
    real = real_path(name, order["plain"]["paths"])
    try:
        return find_program(real, order["env"], "")
    except OSError as error:
        raise OSError(error.errno, error.strerror.replace(real, name)) from error


def _await_adoption(spawner: int) -> None:
    """Wait the microseconds until the helper has ended and the runtime is the parent."""
    deadline = time.monotonic() + ADOPTED_SECONDS
    while os.getppid() != spawner:
        if time.monotonic() > deadline:
            raise OSError("the runtime has ended")
        os.sched_yield()


def _enter_pod(description: str) -> None:
    """Tell the preload library of this process, which started as another's, whose it is now."""
    if ctypes.CDLL(None).trainyard_enter(os.fsencode(description)):
        raise OSError(f"the pod's description cannot be read: {description}")


def real_path(path: str, paths: Iterable[Iterable[str]]) -> str:
    """Return where a path of the pod lies on this machine.

    Example:
        >>> real_path("/data/x", [["/data", "/pods/1/data"]])
        '/pods/1/data/x'
    """
    best = max(
        ((seen, real) for seen, real in paths if path == seen or path.startswith(seen + "/")),
        key=lambda pair: len(pair[0]),
        default=None,
    )
    return best[1] + path.removeprefix(best[0]) if best else path
