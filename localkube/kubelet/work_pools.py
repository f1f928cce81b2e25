"""Threads for what walks through the files of pods and claims, in slices, with turns for each namespace.

A pod can fill a volume with any number of files. Whoever walks through them has one slice of a thread at a
time for all its pods, so a neighbour's walk waits for one slice of each namespace, and what a container's
start needs from other threads for none. Cancelling ends a walk with its slice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from localkube.kubelet.heartbeat import namespace_of_work

SLICE_SECONDS = 0.05
# A message takes as long as so many bytes.
MESSAGE_BYTES = 2048
REMEMBERED_NAMESPACES = 4096
Result = TypeVar("Result")


class Turns:
    """Lets each namespace do at most so many things of one kind at a time.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._users: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of the namespace whose work this is."""
        namespace = namespace_of_work()
        free, users = self._users.get(namespace) or (asyncio.Semaphore(self._most), 0)
        self._users[namespace] = free, users + 1
        try:
            async with free:
                yield
        finally:
            free, users = self._users.pop(namespace)
            if users > 1:
                self._users[namespace] = free, users - 1

    def of_pods(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for a turn where this is the work of a pod; other work begins at once."""
        return self.turn() if namespace_of_work() else contextlib.nullcontext()


class Pace:
    """Lets each namespace send and receive so much a second; what is beyond it waits in turn.

    A flood of streams would take the API server's processors, and the kubelet's one loop, from all others.

    Args:
        rate: Bytes a second.
        burst: Bytes that an idle namespace has saved.
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._saved, self._clock = rate, burst / rate, clock
        self._due: dict[str, float] = {}

    async def pass_on(self, size: int) -> None:
        """Wait until a message of the present task's namespace, of so many bytes, may be passed on.

        The loop has a turn in any case: a connection that is lost takes all without making anybody wait.
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
        """Add what an iterator yields."""
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
            await asyncio.wait([future])  # what it works on may go with whoever waits for it
            raise
        finally:
            del future  # an error's traceback has this frame: in a cycle, all its frames hold would stay


def _advance(steps: Iterator[object]) -> bool:
    """Advance an iterator for one slice; False at its end."""
    end = time.monotonic() + SLICE_SECONDS
    return any(time.monotonic() > end for _ in steps)


WALKS = WorkPool("walk", threads=2)
# What pods name is in memory while they are prepared, and one object can be named by all of them.
OBJECTS = Turns(2)
# What is computed from the text of pods, ConfigMaps and Services.
TEXTS = WorkPool("text", threads=2)
# Sizes of volumes, which a machine short of disk waits for, do not wait for walks.
MEASURES = WorkPool("measure", threads=2)
# Streams of exec, attach, port-forward and logs; alone, one of them sends 120 MB a second.
STREAMS = Pace(rate=32e6, burst=256e6)
