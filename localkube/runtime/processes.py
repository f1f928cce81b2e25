"""The processes that the runtime starts: a table of them, their standard streams, the cluster's own programs.

Standard library only, for ``init.py``.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from localkube.runtime import syscalls
from localkube.runtime.container_spec import ContainerSpec, PlainPod
from localkube.runtime.messages import close_all

# The OOM killer ends pods first and the cluster's own processes, which have a kubelet's score, last. A user
# who may not lower scores keeps the current one for the cluster, and pods get a higher one.
OOM_SCORE = "/proc/self/oom_score_adj"
CLUSTER_SCORE, SCORE_DISTANCE, HIGHEST_SCORE = -999, 100, 1000


@dataclass
class ProcessEntry:
    """A process that was started and whose end has not been acknowledged.

    ``pipes`` stay open for a kubelet that restarts, and with them the journal of its log
    (``kubelet/logs/container_log.py``); ``spec`` and ``plain`` are for commands executed in the container. A
    process of owner ``exec`` belongs to the connection that requested it, and ends with that. ``forked_from``
    is the pid of the fork server from which a container was forked, or 0.
    """

    identity: str
    owner: str
    pid: int
    started: float
    pipes: dict[str, int] = field(default_factory=dict)
    spec: ContainerSpec | None = None
    plain: PlainPod | None = None
    client: socket.socket | None = None
    container: str = ""
    forked_from: int = 0
    mount_namespace: int | None = None
    status: int | None = None
    ended: float | None = None
    forgotten: bool = False

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.identity,
            "owner": self.owner,
            "pid": self.pid,
            "started": self.started,
            "status": self.status,
            "ended": self.ended,
            "streams": list(self.pipes),
            "forked_from": self.forked_from,
        }


@contextlib.contextmanager
def open_streams(
    *, terminal: bool, stdin: bool, null: int
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Open a process's standard streams: our ends, and its own, which are closed at the end of the block.

    If the process cannot be started, our ends are closed as well.

    Args:
        terminal: Open no pipes: the process opens a terminal for itself.
        stdin: Open a pipe for its input.
        null: Its input otherwise; stays open.
    """
    parent_ends: dict[str, int] = {}
    child_ends: dict[str, int] = {}
    try:
        if not terminal:
            child_ends["stdin"] = null
            for name in ("stdout", "stderr"):
                parent_ends[name], child_ends[name] = os.pipe2(os.O_CLOEXEC)
            if stdin:
                child_ends["stdin"], parent_ends["stdin"] = os.pipe2(os.O_CLOEXEC)
        yield parent_ends, child_ends
    except BaseException:
        close_all(parent_ends.values())
        raise
    finally:
        close_all(descriptor for descriptor in child_ends.values() if descriptor != null)


def start_host_process(
    request: dict[str, Any], *, null: int, plain: bool, descriptor: int | None = None
) -> int:
    """Start a program of the cluster itself, in the runtime's namespaces, with the host's file system.

    Args:
        request: ``argv``, ``env``, ``cwd`` and ``log``, the file of its output.
        null: Its standard input.
        plain: There are no namespaces, so the kernel has to end it with this process.
        descriptor: Inherited; its number is in ``FD_0``.
    """
    output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = os.fork()
        if not pid:
            _execute_on_host(request, (null, output, output), plain, descriptor)
    finally:
        os.close(output)
    return pid


def _execute_on_host(
    request: dict[str, Any], streams: tuple[int, ...], plain: bool, descriptor: int | None
) -> NoReturn:
    try:
        os.setsid()
        if plain:
            syscalls.die_with_parent()
        signal.set_wakeup_fd(-1)
        for default in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(default, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        env = request["env"]
        if descriptor is not None:
            os.set_inheritable(descriptor, True)
            env = env | {"FD_0": str(descriptor)}
        os.umask(0o077)
        os.chdir(request.get("cwd", "/"))
        os.execve(request["argv"][0], request["argv"], env)
    except OSError as error:
        os.write(2, f"cannot start {request['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(127)


def kill_session(leader: int, number: int = signal.SIGKILL) -> None:
    """Signal every process in the session of ``leader``; not a daemon in a session of its own."""
    for name in os.listdir("/proc"):
        if name.isdigit() and _session(name) == leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), number)


def _session(pid: str) -> int | None:
    fields = stat_fields(pid)
    return int(fields[3]) if fields else None


def stat_fields(pid: int | str) -> list[bytes] | None:
    """Read the fields of a process in proc(5), from its state, the third, on; None if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may have any character.
            return file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def protect() -> None:
    """Let the OOM killer end this process and its descendants last, if the user may lower the score."""
    with contextlib.suppress(PermissionError), open(OOM_SCORE, "w") as file:
        file.write(str(CLUSTER_SCORE))


def set_oom_score(score: int) -> None:
    """Set a container's OOM score, above that of the cluster's processes if theirs could not be lowered."""
    descriptor = os.open(OOM_SCORE, os.O_RDONLY | os.O_CLOEXEC)
    own = int(os.read(descriptor, 64))
    os.close(descriptor)
    least = score if own <= CLUSTER_SCORE else own + SCORE_DISTANCE
    write_file(OOM_SCORE, b"%d" % min(max(score, least), HIGHEST_SCORE))


def write_file(path: str, content: bytes) -> None:
    """Write a file of the kernel in one system call: a file object costs a start twenty pages of memory."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
