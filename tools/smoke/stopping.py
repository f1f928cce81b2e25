"""Stop a run on a signal or at its time limit, except in protected sections.

SIGTERM, SIGINT and the limit all become a KeyboardInterrupt, which the kit understands: what it was about to
make, it unmakes.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

TIME_LIMIT = "time limit"
INTERRUPTED = "interrupted"


class Stopping:
    """Turns signals and the time limit into KeyboardInterrupt; made in the main thread.

    Attributes:
        reason: Why the run has to stop: ``TIME_LIMIT``, ``INTERRUPTED``, or None while it may go on.
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
        before, self._holding = self.reason, self._holding + 1
        try:
            yield
        finally:
            self._holding -= 1
        if self.reason and not before and not self._holding:
            raise KeyboardInterrupt(self.reason)
