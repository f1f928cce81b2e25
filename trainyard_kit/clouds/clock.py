"""Time, as operations at a cloud see it; tests bring a clock in which waiting takes no time."""

import time


class Clock:
    """The clock on the wall."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
