"""The time at the fake cloud: it stands still until it is moved, or runs as fast as it is told.

What is to happen later waits in a queue and happens in order of time, each at its own moment, when the clock
is moved past it or when somebody asks something after that moment. There is no thread.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


class SimulatedClock:
    """Simulated time.

    Args:
        speed: How many simulated seconds pass in a real one; 0 stands still until `advance`.
        begin: What it shows at first.
    """

    def __init__(self, speed: float = 0.0, *, begin: datetime = BEGIN) -> None:
        self.lock = threading.RLock()
        self.speed = speed
        self._now = begin
        self._seen = time.monotonic()
        self._queue: list[tuple[datetime, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def now(self) -> datetime:
        """What it shows; what was due until then has happened."""
        with self.lock:
            self.settle()
            return self._now

    def begin_at(self, when: datetime) -> None:
        """Show this time from now on, also an earlier one: for a fake that is used as if it were real.

        Clients take the end of a cluster from their own clock.
        """
        with self.lock:
            assert not self._queue, "what waits has its time already"
            self._now, self._seen = when, time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is due in it happen."""
        with self.lock:
            self.settle()
            self._pass_to(self._now + timedelta(seconds=seconds))

    def run(self, speed: float) -> None:
        """Run by itself from now on, so many times faster than the real time."""
        with self.lock:
            self.settle()
            self.speed = speed

    def settle(self) -> None:
        """Let pass what has passed in the real world since somebody last looked, times the speed."""
        with self.lock:
            seen, self._seen = self._seen, time.monotonic()
            self._pass_to(self._now + timedelta(seconds=(self._seen - seen) * self.speed))

    def at(self, when: datetime, what: Callable[[], None]) -> None:
        """Let ``what`` happen at that moment; at once, if it is past."""
        with self.lock:
            heapq.heappush(self._queue, (when, next(self._numbers), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Let ``what`` happen that much later."""
        self.at(self._now + timedelta(seconds=seconds), what)

    def _pass_to(self, until: datetime) -> None:
        while self._queue and self._queue[0][0] <= until:
            when, _, what = heapq.heappop(self._queue)
            self._now = max(self._now, when)
            what()
        self._now = max(self._now, until)
