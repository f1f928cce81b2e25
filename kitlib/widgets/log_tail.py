"""The last lines of many workers as one log in the order of time, and the same as a browser gets it. Pure."""

from collections.abc import Iterable

from kitlib.display.tracebacks import Line, time_key
from kitlib.k8s import pods
from kitlib.metrics.log_format import format_line

MOST_LINES = 60  # what is sent each second
LONGEST = 240  # characters


class Journal:
    """Keeps the newest lines; the order of each worker's lines is never changed.

    Args:
        most: How many lines to keep.
    """

    def __init__(self, most: int = MOST_LINES) -> None:
        self.most = most
        self.lines: list[tuple[int | str, Line]] = []
        self.total = 0

    def add(self, lines: Iterable[tuple[int | str, Line]]) -> None:
        """Take in lines with their ranks; those of one rank in its order."""
        new = list(lines)
        self.total += len(new)
        self.lines += new
        self.lines.sort(key=lambda each: time_key(each[1].time))  # stable: equal times stay as they came
        del self.lines[: -self.most]

    def rows(self) -> list[list[object]]:
        """Return rank, time of day in UTC, and text of each line as people read it, long ones cut."""
        return [[rank, line.time[11:19], _shown(line.text, rank)] for rank, line in self.lines]


def _shown(text: str, rank: int | str) -> str:
    shown = format_line(text, pod=pods.display_name(rank))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
