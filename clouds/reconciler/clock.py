"""Time, as the work on many resources sees it; tests bring one in which it passes at once."""

import contextlib
import queue
import time


class Clock:
    """The clock on the wall.

    Attributes:
        tick: Seconds after which a wait ends in any case, so that who watches sees time pass.
    """

    tick = 1.0

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def receive(self, inbox: queue.SimpleQueue, *, until: float, requests: int) -> object | None:
        """Return the next message, or None if it is ``until`` and there was none.

        Args:
            requests: How many are under way, each of which will send a message: a clock that can be set goes
                on only when there are none.
        """
        with contextlib.suppress(queue.Empty):
            return inbox.get(timeout=max(0.0, min(until - self.now(), self.tick)))
        return None
