"""What trainers say: JSON lines among a pod's other output, made into frozen dataclasses.

Pure: text in, data out. Lines that are for people, torn lines and lines of another shape are skipped, never
fatal; how the text gets here is not here.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

EVENTS = ("start", "step", "epoch", "rendezvous", "checkpoint", "resume", "eval", "end")
MOST_DIGITS = 18  # of a whole number in 64 bits


@dataclass(frozen=True)
class Event:
    """One JSON line of a trainer.

    Attributes:
        event: Its kind, one of :data:`EVENTS` or the trainer's own.
        time: Seconds since 1970, on the clock of the rank's machine.
        rank: The process that said it.
        world_size: How many processes there were.
        fields: The rest: ``loss``, ``accuracy``, ``images_per_s`` …
    """

    event: str
    time: float
    rank: int
    world_size: int
    fields: dict[str, object] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """Return it flat, as a row of a table."""
        return {
            "event": self.event,
            "time": self.time,
            "rank": self.rank,
            "world_size": self.world_size,
            **self.fields,
        }


def parse_line(line: str) -> Event | None:
    """Return the event on this line, or None if the line is something else.

    Example:
        >>> parse_line('{"event": "step", "time": 1.5, "rank": 0, "world_size": 2, "loss": 0.25}').fields
        {'loss': 0.25}
        >>> parse_line("Epoch 1 begins") is None
        True
    """
    body = parse_object(line)
    if body is None or not isinstance(body.get("event"), str):
        return None
    time, rank, world_size = (body.get(key) for key in ("time", "rank", "world_size"))
    if not (_is_number(time) and math.isfinite(time) and _is_count(rank) and _is_count(world_size)):
        return None
    fields = {key: value for key, value in body.items() if key not in ("event", "time", "rank", "world_size")}
    return Event(body["event"], float(time), rank, world_size, fields)


def parse_object(line: str) -> dict[str, object] | None:
    """Return the JSON object with which this line ends, whatever is before it, or None if there is none.

    A whole number that no machine's integer holds is a float: it can then be calculated with and shown.
    """
    start = line.find("{")  # torchrun may put "[default0]:" in front
    if start < 0:
        return None
    try:
        return json.loads(line[start:], parse_int=_whole)  # what begins with a brace is an object
    except (ValueError, RecursionError):
        return None


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events among ``lines``, in their order."""
    return (event for event in map(parse_line, lines) if event is not None)


def rows(events: Iterable[Event], event: str | None = None) -> list[dict[str, object]]:
    """Return events as rows in the order of their time, all of them or those of one kind."""
    chosen = (each for each in events if event is None or each.event == event)
    return [each.row() for each in sorted(chosen, key=lambda each: (each.time, each.rank))]


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
