"""Threads for walks through the files of pods and claims, in slices, with turns for each namespace.

A pod can fill a volume with any number of files. A namespace has one slice of a thread at a time for the
walks of all its pods, so another namespace's walk waits for one slice of each, and the start of a container,
which uses other threads, for none. A cancelled walk ends with its slice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from localkube.kubelet.heartbeat import namespace_of_work

SLICE_SECONDS = 0.05
# The overhead of a message, in bytes.
MESSAGE_BYTES = 2048
REMEMBERED_NAMESPACES = 4096
Result = TypeVar("Result")


class Turns:
    """Limits the concurrent operations of one kind in each namespace.

    Args:
        limit: Operations at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._users: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn of the current task's namespace."""
        namespace = namespace_of_work()
        free, users = self._users.get(namespace) or (asyncio.Semaphore(self._limit), 0)
        self._users[namespace] = free, users + 1
        try:
            async with free:
                yield
        finally:
            free, users = self._users.pop(namespace)
            if users > 1:
                self._users[namespace] = free, users - 1

    def of_pods(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for a turn if the current task works for a pod; other tasks start at once."""
        return self.turn() if namespace_of_work() else contextlib.nullcontext()


class Pace:
    """Limits the bytes per second that each namespace sends and receives; excess messages are delayed.

    A flood of streams would take the API server's processors, and the kubelet's one loop, from all others.

    Args:
        rate: Bytes per second.
        burst: The capacity of an idle namespace's token bucket, in bytes.
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._saved, self._clock = rate, burst / rate, clock
        self._due: dict[str, float] = {}

    async def pass_on(self, size: int) -> None:
        """Wait until a message of this size, of the current task's namespace, may be passed on.

        It always yields to the loop: a lost connection accepts all data without blocking.
        """
        namespace, now = namespace_of_work(), self._clock()
        if len(self._due) > REMEMBERED_NAMESPACES:
            self._due = {name: due for name, due in self._due.items() if due > now - self._saved}
        due = max(self._due.get(namespace, 0.0), now - self._saved) + (size + MESSAGE_BYTES) / self._rate
        self._due[namespace] = due
        await asyncio.sleep(max(0.0, due - now))


class WorkPool:
    """Threads of one kind of work."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._turns = Turns(1)

    async def walk(self, steps: Iterator[object]) -> None:
        """Advance an iterator to its end."""
        async with self._turns.turn():
            while await self._slice(_advance, steps):
                pass

    async def sum(self, numbers: Iterable[int]) -> int:
        sums: list[int] = [0]

        def add() -> Iterator[None]:
            for number in numbers:
                sums[0] += number
                yield

        await self.walk(add())
        return sums[0]

    async def call(self, work: Callable[..., Result], *args: object) -> Result:
        """Call a function; it is one slice, however long it takes."""
        async with self._turns.turn():
            return await self._slice(work, *args)

    async def _slice(self, work: Callable[..., Result], *args: object) -> Result:
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])  # the waiting task may release what it works on
            raise
        finally:
            del future  # breaks the cycle with an error's traceback, which has this frame


def _advance(steps: Iterator[object]) -> bool:
    """Advance an iterator for one slice; False at its end."""
    end = time.monotonic() + SLICE_SECONDS
    return any(time.monotonic() > end for _ in steps)


WALKS = WorkPool("walk", threads=2)
# A pod's objects are in memory while it is prepared, and all pods can refer to the same object.
OBJECTS = Turns(2)
# Work on the text of pods, ConfigMaps and Services.
TEXTS = WorkPool("text", threads=2)
# Sizes of volumes, which a machine short of disk waits for, do not wait for walks.
MEASURES = WorkPool("measure", threads=2)
# Streams of exec, attach, port-forward and logs; alone, one of them sends 120 MB a second.
STREAMS = Pace(rate=32e6, burst=256e6)
