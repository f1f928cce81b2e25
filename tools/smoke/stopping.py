"""Stop a run on a signal or at its time limit, except in protected sections.

SIGTERM, SIGINT and the limit raise KeyboardInterrupt, on which the kit deletes what it was creating.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

TIME_LIMIT = "time limit"
INTERRUPTED = "interrupted"


class Stopping:
    """Raises KeyboardInterrupt on signals and at the time limit; created in the main thread.

    Attributes:
        reason: ``TIME_LIMIT``, ``INTERRUPTED``, or None while the run may continue.
    """

    def __init__(self, *, seconds: float | None = None) -> None:
        self.reason: str | None = None
        self._holding = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._stop)
        signal.setitimer(signal.ITIMER_REAL, seconds or 0)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.reason:
            print(f"{self.reason}: cleaning up already", flush=True)
            return
        self.reason = TIME_LIMIT if number == signal.SIGALRM else INTERRUPTED
        if not self._holding:
            raise KeyboardInterrupt(self.reason)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Defer interrupts until the end of the block."""
        reason_before, self._holding = self.reason, self._holding + 1
        try:
            yield
        finally:
            self._holding -= 1
        if self.reason and not reason_before and not self._holding:
            raise KeyboardInterrupt(self.reason)
