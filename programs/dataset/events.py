"""The program's output: one JSON object per line on stdout, which the notebook shows, and its errors."""

import errno
import json
import sys
import time

EVERY_SECONDS = 0.25


class PreparationError(Exception):
    """An error that stops the program, with a readable message. ``unreachable``: no source was reached."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


def emit(event: str, **fields: object) -> None:
    """Write one event and flush it."""
    line = {"event": event, "time": time.time(), "rank": 0, "world_size": 1}
    sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class Meter:
    """Report the progress of some work, a few times a second.

    Args:
        doing: The current work, such as ``downloading cifar-10-python.tar.gz``.
        total: The total amount of work.
        already: The amount completed before.
    """

    def __init__(self, doing: str, total: int, already: int = 0) -> None:
        self.doing, self.total, self.done, self.already = doing, total, already, already
        self.began, self.reported = time.monotonic(), 0.0  # the first event is sent at once

    def add(self, more: int, **fields: object) -> None:
        """Count, and report if it is time."""
        self.done += more
        now = time.monotonic()
        if now - self.reported >= EVERY_SECONDS or self.done >= self.total:
            self.reported = now
            percent = min(100.0, round(100 * self.done / max(1, self.total), 1))
            emit("progress", doing=self.doing, percent=percent, **fields)

    def rate(self) -> float:
        """Return the amount of work per second."""
        return (self.done - self.already) / max(1e-6, time.monotonic() - self.began)


def is_disk_full(error: OSError) -> bool:
    """Return True if an error means that the volume is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
