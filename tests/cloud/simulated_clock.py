"""A clock that the tests set: it goes on only when no request is under way, straight to what comes next."""

import queue
from collections.abc import Callable

from clouds.reconciler.clock import Clock


class SimulatedClock(Clock):
    """Time that passes at once.

    Args:
        passed: Called with the seconds that pass: so that a fake cloud's clock goes with it.
    """

    tick = float("inf")

    def __init__(self, passed: Callable[[float], None] = lambda seconds: None) -> None:
        self.time = 0.0
        self.passed = passed

    def now(self) -> float:
        return self.time

    def receive(self, inbox: queue.SimpleQueue, *, until: float, requests: int) -> object | None:
        if requests:
            return inbox.get(timeout=60)
        self.advance(until - self.time)
        return None

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds > 0:
            self.time += seconds
            self.passed(seconds)
