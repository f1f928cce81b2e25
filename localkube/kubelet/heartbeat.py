"""The heartbeat of the kubelet's event loop, and the watchdog in the supervisor that receives it.

All pods share that loop. A kubelet whose loop is blocked is killed, with a stack trace in its log, and
restarted; running containers are reattached. A mapped file names the pod that blocked it: each step of a
pod's tasks runs with the pod's uid there. A pod that blocks the loop twice is not started again.
"""

import asyncio
import contextlib
import contextvars
import faulthandler
import json
import logging
import mmap
import os
import resource
import signal
import socket
import struct
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from localkube.paths import read_json, write_private
from localkube.runtime.client import short_name
from localkube.runtime.processes import stat_fields

log = logging.getLogger(__name__)
Result = TypeVar("Result")

SOCKET, CURRENT, STALLS = "heartbeat.sock", "kubelet.current", "stalls.json"
BEAT_SECONDS, LATE_SECONDS, QUIET_SECONDS = 1.0, 2.0, 60.0
# Without a beat: a computing kubelet is blocked, an idle one may be waiting for a processor or the disk.
STALL_SECONDS, LONGEST_SECONDS = 10.0, 60.0
COMPUTING = 0.25  # of a core
MAX_STALLS, RECORDED_PODS = 2, 256
UID_BYTES = 64
_CREDENTIALS = struct.Struct("3i")

_pod: contextvars.ContextVar[str] = contextvars.ContextVar("pod", default="")
_namespace: contextvars.ContextVar[str] = contextvars.ContextVar("namespace", default="")


@contextlib.contextmanager
def work_of(pod: Mapping[str, Any]) -> Iterator[None]:
    """Attribute the tasks that are started here, and those that they start, to a pod."""
    metadata = pod["metadata"]
    tokens = _pod.set(metadata["uid"]), _namespace.set(metadata["namespace"])
    try:
        yield
    finally:
        _pod.reset(tokens[0])
        _namespace.reset(tokens[1])


@contextlib.contextmanager
def work_for(namespace: str) -> Iterator[None]:
    """Attribute the current task, and those that it starts, to a namespace."""
    token = _namespace.set(namespace)
    try:
        yield
    finally:
        _namespace.reset(token)


def namespace_of_work() -> str:
    """Return the namespace that the current task works for; empty if none."""
    return _namespace.get()


class Heartbeat:
    """Sends heartbeats from an event loop to the watchdog of the supervisor.

    Args:
        root: The cluster's directory.
        late: Called with a message when the loop was late; at most once a minute.
    """

    def __init__(self, root: Path, *, late: Callable[[str], None]) -> None:
        self._root, self._late, self._stopped = root, late, False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        descriptor = os.open(root / CURRENT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, UID_BYTES)
        self._current = mmap.mmap(descriptor, UID_BYTES)
        os.close(descriptor)
        self._set(NO_POD)
        # SIGABRT, by the watchdog, writes what each thread does, even where one holds the interpreter.
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        asyncio.get_running_loop().set_task_factory(self._new_task)

    async def run(self) -> None:
        """Send heartbeats."""
        loop, reported_at = asyncio.get_running_loop(), float("-inf")
        while True:
            with (
                contextlib.suppress(OSError),
                short_name(self._root / SOCKET) as name,
            ):  # no supervisor receives it
                self._socket.sendto(b"beat", name)
            due = loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            late = loop.time() - due
            if late > LATE_SECONDS:
                await asyncio.sleep(LATE_SECONDS / 20)  # SIGCONT, after a stop, is handled later
                late, self._stopped = late * (not self._stopped), False
            if late > LATE_SECONDS and loop.time() > reported_at + QUIET_SECONDS:
                reported_at = loop.time()
                self._late(f"the event loop of the kubelet was late by {late:.1f} s")

    def ignore_delay(self) -> None:
        """Ignore the current delay: this process was stopped."""
        self._stopped = True

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Result] | Generator[Any, None, Result],
        /,
        **options: Any,
    ) -> asyncio.Task[Result]:
        if (uid := _pod.get()) and isinstance(work, Coroutine):
            work = _with_label(work, _label(uid), self._set)
        return asyncio.Task(work, loop=loop, **options)

    def _set(self, label: bytes) -> None:
        self._current[:] = label


def _label(uid: str) -> bytes:
    return uid.encode()[:UID_BYTES].ljust(UID_BYTES, b"\0")


NO_POD = _label("")


async def _with_label(
    work: Coroutine[Any, Any, Result], label: bytes, mark: Callable[[bytes], None]
) -> Result:
    """Run a coroutine, with its pod's uid in the shared memory during each of its steps."""
    return await _steps(work, label, mark)  # a task takes no generator, from Python 3.12 on


@types.coroutine
def _steps(work: Coroutine[Any, Any, Any], label: bytes, mark: Callable[[bytes], None]) -> Any:
    value: Any = None
    error: BaseException | None = None
    while True:
        mark(label)
        try:
            future = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            mark(NO_POD)
            value = error = None  # breaks the cycle with the error's traceback, which holds its frames
        try:
            value = yield future
        except GeneratorExit:
            work.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - the coroutine's own to handle: a cancellation is one
            error = raised
        finally:
            del future  # it refers to the error as well


def stalls(root: Path) -> Mapping[str, int]:
    """Read how often the tasks of each pod have blocked the loop, by uid."""
    counts = read_json(root / STALLS).items()
    return {uid: count for uid, count in counts if isinstance(count, int)}


def stall_outcome(count: int) -> tuple[str, str, str] | None:
    """Phase, reason and message of a pod that is not started again, because its tasks block all others."""
    if count < MAX_STALLS:
        return None
    return "Failed", "KubeletStalled", f"the work of this pod blocked the kubelet {count} times"


class Watchdog:
    """Kills the kubelet when its loop is blocked while the cluster is awake; part of the supervisor."""

    def __init__(self, root: Path, awake: asyncio.Event) -> None:
        self._root, self._awake = root, awake
        self._path = root / SOCKET
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with short_name(self._path) as name:
            self._socket.bind(name)
        self._path.chmod(0o600)
        self._pid, self._beat_at, self._used = 0, 0.0, 0.0

    async def run(self) -> None:
        """Receive the kubelet's heartbeats, and kill it when they stop."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._receive)
        while True:
            if not self._awake.is_set():
                await self._awake.wait()
                self._beat_at = loop.time()
            due = loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            if loop.time() > due + LATE_SECONDS or (self._pid and _state(self._pid) in "tTZX?"):
                self._beat_at = (
                    loop.time()
                )  # this process, the machine or the kubelet was stopped, or it has ended
                self._used = _cpu_seconds(self._pid)
            elif self._pid and self._is_blocked(loop.time() - self._beat_at):
                self._end(loop.time() - self._beat_at)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                _, ancillary, *_ = self._socket.recvmsg(16, socket.CMSG_SPACE(_CREDENTIALS.size))
                for _, kind, data in ancillary:
                    if kind == socket.SCM_CREDENTIALS:
                        self._pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
                self._beat_at, self._used = asyncio.get_running_loop().time(), _cpu_seconds(self._pid)

    def _is_blocked(self, seconds: float) -> bool:
        if seconds < STALL_SECONDS:
            return False
        computed = _cpu_seconds(self._pid) - self._used
        return computed > COMPUTING * STALL_SECONDS or seconds > LONGEST_SECONDS

    def _end(self, seconds: float) -> None:
        """Kill the kubelet, and record the pod that it was working for."""
        current = (self._root / CURRENT).read_bytes().rstrip(b"\0").decode(errors="replace")
        cause = f" by pod {current}" * bool(current)
        log.warning("the kubelet's event loop has been blocked for %.0f s%s: killing it", seconds, cause)
        if current:
            known = dict(stalls(self._root))
            count = known.pop(current, 0) + 1
            counts = dict(list(known.items())[1 - RECORDED_PODS :]) | {current: count}
            with contextlib.suppress(OSError):  # a full disk
                write_private(self._root / STALLS, json.dumps(counts))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGABRT)
        self._pid = 0


def _cpu_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks if fields else 0.0


def _state(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[0].decode() if fields else "?"
