"""Plain mode: containers without namespaces, as processes of the machine.

Subreapers replace PID namespaces: a container's first process adopts the orphans among its descendants, and
when it ends the runtime adopts them all, and kills them. The preload library (``preload/``) replaces the
other namespaces and the mounts, inside the container's programs.

Standard library only: ``init.py`` runs it with ``python -S``, and the forkserver imports it too.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

from localkube.runtime import syscalls
from localkube.runtime.container import (
    ContainerStartError,
    become,
    enter_limits,
    find_program,
    report_pid,
    stage,
)
from localkube.runtime.container_spec import ContainerSpec, PlainPod, ProcessSpec
from localkube.runtime.processes import stat_fields

ADOPTED_SECONDS = 5.0


def enter(settings: dict[str, Any]) -> None:
    """Adopt every orphan below this process, and exit with the parent."""
    parent = os.getppid()
    syscalls.adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    syscalls.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        _end()


def _end(*_: object) -> NoReturn:
    """Kill every process below this one, and exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_children()
    os._exit(0)


def end_children(besides: Iterable[int] = ()) -> None:
    """Kill every process below this one, and the orphans that it adopts from each."""
    while pids := set(children()) - set(besides):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def children() -> list[int]:
    """List the processes whose parent is this one."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return [pid for pid in _pids() if _parent(pid) == os.getpid()]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def end_strays(known: Callable[[], set[int]]) -> None:
    """Kill the processes that ended containers left behind: children that the runtime did not start.

    Args:
        known: Lists the children that it did start; called after the children are listed, so none is missing.
    """
    pids = set(children())
    for pid in pids - known():
        os.kill(pid, signal.SIGKILL)


def unplug_node(request: dict[str, Any]) -> None:
    """Refuse to isolate a node; one that is powered off needs no disconnecting, as its processes end."""
    if request.get("isolate"):
        message = "a node cannot be isolated in plain mode: its pods are on this machine's own network"
        raise ContainerStartError("sandbox", message)


def create(
    spec: ContainerSpec,
    fds: dict[str, int],
    writer: int,
    *,
    pod: PlainPod,
    init: int,
    main: Callable[[], NoReturn] | None = None,
    first: bool = True,
) -> NoReturn:
    """Leave a container's process behind, or a command's in one; it becomes a child of the runtime.

    Args:
        fds: ``stdin``, ``stdout``, ``stderr``; not used with a terminal.
        writer: The socket on which its pid is reported, or the failed stage and a message (``launcher.py``).
        pod: The real paths of its pod.
        init: The runtime's pid.
        main: Called in place of the command, when the caller has already loaded it.
        first: It is the container's first process.
    """
    try:
        with stage(writer, "sandbox"):
            enter_limits(spec)
        pid = os.fork()
        if pid == 0:
            with stage(writer, "sandbox"):
                _settle(init, new_session=not spec.process.terminal, first=first)
            _become(spec.process, fds, pod, main, writer)
        report_pid(writer, pid)
    finally:
        os._exit(0)


def _settle(init: int, *, new_session: bool, first: bool) -> None:
    """Become a child of the runtime that ends with it."""
    if new_session:  # take_terminal starts the session
        os.setsid()
    _await_adoption(init)
    syscalls.die_with_parent()
    if first:
        syscalls.adopt_orphans()


def _become(
    process: ProcessSpec, fds: dict[str, int], pod: PlainPod, main: Callable[..., Any] | None, writer: int
) -> NoReturn:
    program = ""
    with stage(writer, "exec"):
        if main is None:
            program = _program(process, pod)
            process = replace(process, cwd=pod.cwd)
        else:
            os.chdir(pod.cwd)  # a real path, before the pod's own paths may hide it
            _enter_pod(pod.description)
            process = replace(process, cwd=".")
    become(process, fds, writer, main, program)


def _program(process: ProcessSpec, pod: PlainPod) -> str:
    """Find the file to execute; errors name its path in the pod."""
    name = process.args[0]
    real = real_path(name, pod.paths)
    try:
        return find_program(real, process.environment, "")
    except OSError as error:
        raise OSError(error.errno, (error.strerror or "").replace(real, name)) from error


def _await_adoption(init: int) -> None:
    """Wait until the helper has ended and the runtime is the parent, a matter of microseconds."""
    deadline = time.monotonic() + ADOPTED_SECONDS
    while os.getppid() != init:
        if time.monotonic() > deadline:
            raise OSError("the runtime has ended")
        os.sched_yield()


def _enter_pod(description: str) -> None:
    """Move this process into a pod: its preload library was loaded outside of any pod."""
    if ctypes.CDLL(None).trainyard_enter(os.fsencode(description)):
        raise OSError(f"the pod's description cannot be read: {description}")


def real_path(path: str, paths: Iterable[Iterable[str]]) -> str:
    """Translate a path of the pod into the real one.

    Example:
        >>> real_path("/data/x", [["/data", "/pods/1/data"]])
        '/pods/1/data/x'
    """
    best = max(
        ((shown, real) for shown, real in paths if path == shown or path.startswith(shown + "/")),
        key=lambda pair: len(pair[0]),
        default=None,
    )
    return best[1] + path.removeprefix(best[0]) if best else path
