"""What the program says: a JSON object a line on stdout, which the notebook shows, and the words of its
errors."""

import errno
import json
import sys
import time

EVERY_SECONDS = 0.25


class Trouble(Exception):
    """Something that ends the work, in words for people; ``unreachable`` when no source could be had."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


def say(event: str, **fields: object) -> None:
    """Write one event, at once."""
    line = {"event": event, "time": time.time(), "rank": 0, "world_size": 1}
    sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class Meter:
    """Tells how far some work has come, a few times a second.

    Args:
        doing: What is done, such as ``downloading cifar-10-python.tar.gz``.
        total: How much there is to do.
        already: How much of it was done before.
    """

    def __init__(self, doing: str, total: int, already: int = 0) -> None:
        self.doing, self.total, self.done, self.already = doing, total, already, already
        self.began, self.told = time.monotonic(), 0.0  # the first time, it is told at once

    def add(self, more: int, **fields: object) -> None:
        """Count, and tell if it is time."""
        self.done += more
        now = time.monotonic()
        if now - self.told >= EVERY_SECONDS or self.done >= self.total:
            self.told = now
            percent = min(100.0, round(100 * self.done / max(1, self.total), 1))
            say("progress", doing=self.doing, percent=percent, **fields)

    def rate(self) -> float:
        """Return what was done in a second."""
        return (self.done - self.already) / max(1e-6, time.monotonic() - self.began)


def full(error: OSError) -> bool:
    """Return whether an error says that the volume is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
