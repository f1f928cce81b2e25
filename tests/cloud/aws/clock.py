"""Simulated time: what is to happen is kept in order and happens when the clock is moved past it.

Nothing here sleeps. A test moves the clock itself, or lets it follow another one.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class SimulatedClock:
    """The fake's time, in seconds since 1970; it begins at the real time.

    Example:
        >>> clock = SimulatedClock()
        >>> clock.after(60, lambda: print("a minute later"))
        >>> clock.advance(61)
        a minute later
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Forget all that was to happen, follow nobody, and begin again at the real time."""
        with self._lock:
            self._now = time.time()
            self._due: list[tuple[float, int, Callable[[], None]]] = []
            self._leader: Callable[[], float] | None = None
            self._led_from = 0.0

    def now(self) -> float:
        """Return the time."""
        with self._lock:
            self.settle()
            return self._now

    def date(self) -> datetime:
        """Return the time as a date, without microseconds, as Amazon gives it."""
        return datetime.fromtimestamp(self.now(), UTC).replace(microsecond=0)

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is due happen in its order."""
        with self._lock:
            self._run(self.now() + seconds)

    def follow(self, monotonic: Callable[[], float]) -> None:
        """Run as fast as another clock does, from now on."""
        with self._lock:
            self.settle()
            self._leader, self._led_from = monotonic, monotonic()

    def run(self, speed: float) -> None:
        """Run by itself, so many times faster than real time."""
        self.follow(lambda: time.monotonic() * speed)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something when so much time has passed; at once if it is none."""
        with self._lock:
            if seconds <= 0:
                act()
            else:
                heapq.heappush(self._due, (self._now + seconds, next(self._numbers), act))

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a time; at once if it has passed."""
        self.after(when - self.now(), act)

    def settle(self) -> None:
        """Let happen what is due by the clock that is followed."""
        with self._lock:
            if self._leader is not None:
                reads = self._leader()
                passed, self._led_from = reads - self._led_from, reads
                self._run(self._now + max(passed, 0.0))

    def _run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            when, _, act = heapq.heappop(self._due)
            self._now = max(self._now, when)
            act()
        self._now = max(self._now, until)
