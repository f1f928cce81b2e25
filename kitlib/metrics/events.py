"""Trainers' events: JSON lines among a pod's other output, parsed into frozen dataclasses. Pure.

Lines for people, torn lines and lines of another shape are skipped, never fatal.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

EVENTS = ("start", "step", "epoch", "rendezvous", "checkpoint", "resume", "eval", "end")
COMMON = ("event", "time", "rank", "world_size")
MAX_DIGITS = 18  # of a whole number in 64 bits
MAX_RANKS = 4096  # that are told apart: a pod can write any number
MAX_FIGURE = 1e30  # of a figure: sums and axes of larger ones overflow
LAST_TIME = 1e11  # a year of four digits
LONGEST_LINE = 1 << 20  # characters in which an event is looked for


@dataclass(frozen=True)
class Event:
    """One JSON line of a trainer.

    Attributes:
        event: One of :data:`EVENTS` or the trainer's own.
        time: Seconds since 1970, on the clock of the rank's machine.
        rank: The process that wrote it.
        world_size: Number of processes.
        fields: The rest: ``loss``, ``accuracy``, ``images_per_s`` …
    """

    event: str
    time: float
    rank: int
    world_size: int
    fields: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Flatten it to a row of a table."""
        return {name: getattr(self, name) for name in COMMON} | self.fields


def parse_line(line: str) -> Event | None:
    """Parse the event of a line; None for other lines.

    Example:
        >>> parse_line('{"event": "step", "time": 1.5, "rank": 0, "world_size": 2, "loss": 0.25}').fields
        {'loss': 0.25}
        >>> parse_line("Epoch 1 begins") is None
        True
    """
    body = parse_object(line)
    if body is None or not isinstance(body.get("event"), str):
        return None
    time, rank, world_size = (body.get(key) for key in COMMON[1:])
    if not (is_number(time) and 0 <= time < LAST_TIME and _is_count(rank) and _is_count(world_size)):
        return None
    fields = {key: value for key, value in body.items() if key not in COMMON}
    return Event(body["event"], float(time), rank, world_size, fields)


def parse_object(line: str) -> dict[str, Any] | None:
    """Parse the JSON object with which a line ends; None if there is none.

    Whole numbers of more than 64 bits become floats, so that they can be calculated with and shown.
    """
    start = line.find("{")  # torchrun may put "[default0]:" in front
    if start < 0 or len(line) > LONGEST_LINE:
        return None
    try:
        return json.loads(line[start:], parse_int=_whole)  # what begins with a brace is an object
    except (ValueError, RecursionError):
        return None


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Parse the events among ``lines``, in their order."""
    return (event for event in map(parse_line, lines) if event is not None)


def rows(events: Iterable[Event], event: str | None = None) -> list[dict[str, Any]]:
    """Flatten events to rows in the order of their time, all of them or those of one kind."""
    chosen = (entry for entry in events if event is None or entry.event == event)
    return [entry.row() for entry in sorted(chosen, key=lambda entry: (entry.time, entry.rank))]


def is_number(value: object) -> TypeGuard[float]:
    """Tell numbers from booleans, which Python counts among them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_RANKS


def figure(value: object) -> float | None:
    """Read a figure of a trainer's line: a number, NaN if nothing can be calculated with it; else None."""
    if not is_number(value):
        return None
    return float(value) if abs(value) <= MAX_FIGURE else math.nan


def finite_figure(value: object) -> float | None:
    """Read a figure of a trainer's line that can be calculated with; None for anything else."""
    return None if (number := figure(value)) is None or math.isnan(number) else number


def whole_number(value: object) -> int | None:
    """Read a whole number of a trainer's line; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
