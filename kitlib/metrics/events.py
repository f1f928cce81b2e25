"""Trainers' events: JSON lines among a pod's other output, parsed into frozen dataclasses. Pure.

Other lines, incomplete ones and those with invalid fields are skipped.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

COMMON = ("event", "time", "rank", "world_size")
MAX_DIGITS = 18  # of a 64-bit integer
MAX_RANKS = 4096  # because pods' output is untrusted
MAX_FIGURE = 1e30  # of a value: sums and axes of larger ones overflow
LAST_TIME = 1e11  # years have four digits
LONGEST_LINE = 1 << 20  # characters of a line that is parsed


@dataclass(frozen=True)
class Event:
    """One JSON line of a trainer.

    Attributes:
        event: ``start``, ``step``, ``epoch``, ``rendezvous``, ``checkpoint``, ``resume``, ``eval``, ``end``
            or the trainer's own.
        time: Seconds since 1970, on the clock of the rank's machine.
        rank: The process that wrote it.
        world_size: Number of processes.
        fields: Other fields: ``loss``, ``accuracy``, ``images_per_s``, …
    """

    event: str
    time: float
    rank: int
    world_size: int
    fields: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the fields as a row of a table."""
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
    """Parse the JSON object at the end of a line; None if there is none.

    Integers of more than 64 bits become floats, so that they can be computed with and formatted.
    """
    start = line.find("{")  # torchrun may prepend "[default0]:"
    if start < 0 or len(line) > LONGEST_LINE:
        return None
    try:
        return json.loads(line[start:], parse_int=_whole)  # it starts with a brace, so it is an object
    except (ValueError, RecursionError):
        return None


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Parse the events among ``lines``, in order."""
    return (event for event in map(parse_line, lines) if event is not None)


def rows(events: Iterable[Event], event: str | None = None) -> list[dict[str, Any]]:
    """Convert events, all or those of one kind, to rows of a table, sorted by time."""
    selected = (entry for entry in events if event is None or entry.event == event)
    return [entry.row() for entry in sorted(selected, key=lambda entry: (entry.time, entry.rank))]


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_RANKS


def figure(value: object) -> float | None:
    """Convert a number of an event to a float, NaN if it is too large; None for anything else."""
    if not is_number(value):
        return None
    return float(value) if abs(value) <= MAX_FIGURE else math.nan


def finite_figure(value: object) -> float | None:
    """Convert a finite number of an event to a float; None for anything else."""
    return None if (number := figure(value)) is None or math.isnan(number) else number


def whole_number(value: object) -> int | None:
    """Return an integer of an event; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
