"""Numbers in the output of a program that prints no JSON, found by a regular expression. Pure.

Each line that matches is a ``step`` event whose fields are the expression's named groups. The processes that
share a pod, and its log, are one rank here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kitlib.display.tables import parse_time
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.metrics.events import Event, parse_line

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
# As most programs print it: "loss: 0.31", "train_loss=3.1e-1"; but not "Test set: Average loss: 0.31".
LOSS = rf"(?i)^(?!\W*(?:test|val|eval)).*?loss[\"']?\s*(?:is|[=: ])\s*(?P<loss>{_NUMBER})"


def parse_text(logs: Mapping[int | str, Iterable[Line]], pattern: str | None = None) -> list[Event]:
    """Find events in the logs of a run's ranks: the JSON lines of trainers, or else what matches a pattern.

    Args:
        logs: The lines of each rank.
        pattern: A regular expression with named groups: ``r"step (?P<step>\\d+) loss (?P<loss>\\S+)"``.
            Without a group ``step``, the matches of a rank are counted. By default the JSON lines; where
            there are none, the number after the word loss.

    Raises:
        BadInput: The pattern is no regular expression, or has no named group.
    """
    if pattern is None:
        found = [event for lines in logs.values() for line in lines if (event := parse_line(line.text))]
        if found:
            return found
    expression = _compiled(LOSS if pattern is None else pattern)
    return [
        event
        for number, (rank, lines) in enumerate(logs.items())
        for event in _matches(
            lines, expression, rank=rank if isinstance(rank, int) else number, world=len(logs)
        )
    ]


def _matches(lines: Iterable[Line], expression: re.Pattern[str], *, rank: int, world: int) -> Iterator[Event]:
    found = ((line.time, match) for line in lines if (match := expression.search(line.text)))
    for number, (time, match) in enumerate(found):
        fields = {name: _value(text) for name, text in match.groupdict().items() if text is not None}
        yield Event("step", parse_time(time).timestamp(), rank, world, {"step": number} | fields)


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text.replace(",", ""))
        except ValueError:
            continue
    return text


def _compiled(pattern: str) -> re.Pattern[str]:
    example = r'metrics=r"loss[=: ]+(?P<loss>\S+)"'
    try:
        expression = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise BadInput(f"this is no regular expression: {error}", about=repr(pattern), fix=example) from error
    if not expression.groupindex:
        raise BadInput("the expression names no number", about=repr(pattern), fix=example)
    return expression
