"""Starts in progress: the runtime's side of the launcher and of the forkserver.

A start never blocks: its reports arrive at a socket that PID 1 polls together with all others, and a start
that takes too long is killed. Standard library only, for ``init.py``.
"""

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from localkube.runtime import messages
from localkube.runtime.container import ContainerStartError
from localkube.runtime.messages import close_all

# The kubelet's --runtime-request-timeout.
DEADLINE_SECONDS = 120.0
LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher.py")
REPORT_BYTES, MAX_REPORTED = 64 * 1024, 1024 * 1024


class ZygoteClient:
    """A connection to a process that forks helpers; ``ready`` from its first message until it ends."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._socket: socket.socket | None = None
        self.ready = False

    @property
    def runs(self) -> bool:
        """True from its start to its exit: requests sent before it is ready are queued in its socket."""
        return self._socket is not None

    def connect(self) -> socket.socket:
        """Open a new connection; returns the other end."""
        if self._socket is not None:
            self._close()
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent_end.setblocking(False)
        self._socket, self.ready = parent_end, False
        self._selector.register(parent_end, selectors.EVENT_READ, self._readable)
        return child_end

    def send(self, request: socket.socket, about: dict[str, Any]) -> bool:
        """Send the socket of a request, with a header for the zygote itself.

        Returns:
            False if the process has ended, or the queue of its socket is full.
        """
        if self._socket is None:
            return False
        try:
            messages.send(self._socket, about, [request.fileno()])
        except BlockingIOError:
            return False
        except ConnectionError:
            self._close()
            return False
        return True

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            received = messages.receive(self._socket)
        except ConnectionError:
            received = None
        if received is None:
            self._close()
        else:
            self.ready = True

    def _close(self) -> None:
        assert self._socket is not None
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket, self.ready = None, False


def start_launcher(client: ZygoteClient) -> int:
    """Start the launcher with nothing of this process but a connection; returns its pid."""
    with client.connect() as child_end:
        child_end.set_inheritable(True)
        argv = [sys.executable, "-S", "-s", "-E", LAUNCHER, str(child_end.fileno())]
        env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        return os.posix_spawn(sys.executable, argv, env, setsid=True)


@dataclass(eq=False)
class Launch:
    """One start.

    Attributes:
        identity: The identity of the process that is started.
        container: The identity of the container in which it is started; empty for its first process.
        waiting: The requesters: for each its connection and the number of the request.
        streams: Our ends of its standard streams.
        started: Called with the launch once the program is executed; returns the reply.
        pid: The process's pid, as soon as it is known.
        exit: Its status and time, if it has ended already.
        problem: Why it has not started.
        answered: The requesters have their answer; after a failure, remaining processes are being killed.
    """

    identity: str
    container: str
    waiting: list[tuple[socket.socket, int]]
    streams: dict[str, int]
    started: Callable[["Launch"], Any] | None = None
    deadline: float = 0.0
    reports: socket.socket | None = None
    helper: int | None = None  # a pidfd
    pid: int | None = None
    terminal: int | None = None
    exit: tuple[int, float] | None = None
    problem: ContainerStartError | None = None
    has_ended: bool = False
    answered: bool = False
    received: int = field(default=0)

    def read(self) -> None:
        """Read the reports that have arrived."""
        assert self.reports is not None
        while not self.has_ended:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self.reports, REPORT_BYTES, 4, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionError:
                data, descriptors = b"", []
            self._keep_terminal(descriptors)
            self.received += len(data)
            self.has_ended = not data or self.received > MAX_REPORTED
            try:
                for line in data.splitlines():
                    self._take(json.loads(line))
            except (
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                OSError,
                ArithmeticError,
                RuntimeError,
            ) as error:
                self.problem = ContainerStartError("sandbox", f"a report that makes no sense: {error}")

    def _keep_terminal(self, descriptors: list[int]) -> None:
        if descriptors and self.terminal is None:
            self.terminal = descriptors.pop(0)
        close_all(descriptors)

    def _take(self, report: dict[str, Any]) -> None:
        if "helper" in report and self.helper is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, after its other reports
                self.helper = os.pidfd_open(report["helper"])
        elif "pid" in report and self.pid is None:
            self.pid = int(report["pid"])
        elif "stage" in report and self.problem is None:
            self.problem = ContainerStartError(report["stage"], report["message"])

    def kill(self) -> None:
        """Kill the helper, and the process that it has reported so far."""
        if self.helper is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.helper, signal.SIGKILL)
        if self.pid is not None and self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors of a failed start."""
        close_all(self.streams.values())
        self.streams.clear()
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None


class Launches:
    """All starts in progress.

    Args:
        answer: Called once for each start with its problem, if there is one.
        end_strays: Called when a helper was killed, and may have left a process that it did not report.
        seconds: The deadline of each.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        answer: Callable[[Launch, ContainerStartError | None], None],
        end_strays: Callable[[], None],
        seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._selector, self._answer, self._end_strays = selector, answer, end_strays
        self._seconds = seconds
        self._all: list[Launch] = []
        # Wakes up for the end of the reports, not for each report.
        self._ends = select.epoll()
        selector.register(self._ends, selectors.EVENT_READ, self._read_ended)

    def begin(
        self,
        launch: Launch,
        request: dict[str, Any],
        fds: dict[str, int],
        *,
        zygotes: list[ZygoteClient],
        own_processes: bool,
    ) -> ZygoteClient:
        """Send a request to the first zygote that accepts it, and return that zygote.

        Args:
            own_processes: The new process gets a PID namespace of its own.
        """
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as unless_sent, child_end:
            unless_sent.callback(parent_end.close)
            messages.send(parent_end, request | {"fds": list(fds)}, list(fds.values()))
            about = {"own_processes": own_processes}
            acceptor = next((zygote for zygote in zygotes if zygote.send(child_end, about)), None)
            if acceptor is None:
                raise ContainerStartError("sandbox", "the launcher accepts no requests, or has ended")
            unless_sent.pop_all()
        parent_end.setblocking(False)
        launch.reports, launch.deadline = parent_end, time.monotonic() + self._seconds
        self._ends.register(parent_end, 0)
        self._all.append(launch)
        return acceptor

    def _read_ended(self) -> None:
        ended = {descriptor for descriptor, _ in self._ends.poll(0)}
        for launch in self._all:
            if launch.reports and launch.reports.fileno() in ended:
                launch.read()

    def find(self, identity: str) -> Launch | None:
        return next(
            (launch for launch in self._all if launch.identity == identity and not launch.answered), None
        )

    def pending(self, choose: Callable[[Launch], bool]) -> list[Launch]:
        return [launch for launch in self._all if not launch.answered and choose(launch)]

    def pids(self) -> set[int]:
        """List the processes of all starts so far: a helper reports its child before PID 1 adopts it."""
        for launch in self._all:
            launch.read()
        return {launch.pid for launch in self._all if launch.pid is not None}

    def child_exited(self, pid: int, status: int) -> None:
        """Record the exit of a child that is not in the table yet."""
        self.pids()
        for launch in self._all:
            if launch.pid == pid and launch.exit is None:
                launch.exit = status, time.time()

    @property
    def next_deadline(self) -> float | None:
        """Seconds until the next start times out; None if no start is pending."""
        until = [launch.deadline for launch in self._all if not launch.answered]
        return max(0.0, min(until) - time.monotonic()) if until else None

    def settle(self) -> None:
        """Answer the starts that are done, and abort those past their deadline."""
        now = time.monotonic()
        for launch in list(self._all):
            if launch.has_ended:
                self._done(launch)
            elif not launch.answered and launch.deadline <= now:
                self.give_up(launch, f"context deadline exceeded: no start within {self._seconds:g} s")

    def _done(self, launch: Launch) -> None:
        self._forget(launch)
        if launch.answered:
            launch.close()
            return
        launch.answered = True
        problem = launch.problem
        if problem is None and launch.pid is None:
            problem = ContainerStartError("sandbox", "the process ended before it entered the pod")
        self._answer(launch, problem)
        if problem is not None:
            launch.close()

    def give_up(self, launch: Launch, reason: str) -> None:
        """Answer that a start has failed, and kill its processes."""
        launch.read()
        launch.answered = True
        self._answer(launch, ContainerStartError("sandbox", reason))
        launch.kill()
        if launch.helper is None:
            # Its helper has not been forked yet, and will exit when it cannot report.
            self._forget(launch)
            launch.close()
        else:
            self._selector.register(launch.helper, selectors.EVENT_READ, lambda: self._helper_ended(launch))

    def _helper_ended(self, launch: Launch) -> None:
        assert launch.helper is not None
        self._selector.unregister(launch.helper)
        launch.read()
        launch.kill()
        if launch.pid is None and not launch.has_ended:
            self._end_strays()

    def _forget(self, launch: Launch) -> None:
        assert launch.reports is not None
        self._all.remove(launch)
        self._ends.unregister(launch.reports)
        launch.reports.close()
        if launch.helper is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(launch.helper)
            os.close(launch.helper)
            launch.helper = None
