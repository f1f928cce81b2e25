"""Simulated time: what is to happen is kept in order and happens when the clock is moved past it.

Nothing here sleeps. A test moves the clock itself, by waiting as `clouds.steps.Clock` does, or lets it run.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class SimulatedClock:
    """A fake cloud's time, in seconds since 1970; it begins at the real time.

    Attributes:
        lock: The fake's as well.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._numbers = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Forget all that was to happen, stand still, and begin again at the real time."""
        with self.lock:
            self._now, self._speed, self._real = time.time(), 0.0, time.monotonic()
            self._passing = False
            self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Return the time."""
        self.settle()
        return self._now

    def date(self) -> datetime:
        """Return the time as a date, without microseconds, as AWS gives it."""
        return datetime.fromtimestamp(self.now(), UTC).replace(microsecond=0)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and what is due happen in its order."""
        with self.lock:
            self._pass(self.now() + seconds)

    def run(self, speed: float) -> None:
        """Run by itself, so many times faster than real time."""
        with self.lock:
            self._speed, self._real = speed, time.monotonic()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something when so much time has passed; at once if it is none."""
        with self.lock:
            if seconds <= 0:
                act()
            else:
                heapq.heappush(self._due, (self._now + seconds, next(self._numbers), act))

    def settle(self) -> None:
        """Let happen what is due by now, where the clock runs by itself."""
        with self.lock:
            passed, self._real = time.monotonic() - self._real, time.monotonic()
            if self._speed and not self._passing:
                self._pass(self._now + passed * self._speed)

    def _pass(self, until: float) -> None:
        self._passing = True
        try:
            while self._due and self._due[0][0] <= until:
                when, _, act = heapq.heappop(self._due)
                self._now = max(self._now, when)
                act()
        finally:
            self._passing = False
        self._now = max(self._now, until)
