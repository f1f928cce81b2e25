"""Human-readable log lines: an event as ``rank 2  epoch 3  step 140  loss 0.4312``, other text unchanged.

The reader may have more rights than the pods, so control characters are escaped: no line moves the cursor of
a terminal, hides text or sets a title. Pure.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from kitlib.display.tables import printable
from kitlib.metrics.events import is_number, parse_object

MAX_ITEMS = 4  # of a list; of a longer one the number is shown
LONGEST = 500  # characters of a string in an event
WORLD = ("start", "rendezvous")  # the events of which the world size is shown

# The fields that are shown first, in this order: the factor, and the format.
_FIGURES = {
    "epoch": (1, "epoch {}"),
    "step": (1, "step {}"),
    "accuracy": (100, "accuracy {} %"),
    "loss": (1, "loss {}"),
    "images_per_s": (1, "{} images/s"),
    "percent": (1, "{} %"),
    "gpu_percent": (1, "GPU {} %"),
    "mb_per_s": (1, "{} MB/s"),
    "bandwidth_bytes_per_s": (1e-6, "{} MB/s"),
    "latency_us": (1, "latency {} µs"),
    "seconds": (1, "{} s"),
}
_TOTALS = {"epoch": "epochs", "step": "steps"}


def format_line(text: str, *, pod: str = "") -> str:
    """Format a line of a log; the pod's name, such as ``rank 2``, is not repeated.

    Example:
        >>> format_line('{"event": "step", "time": 1.5, "rank": 2, "step": 140, "images_per_s": 1203.7}')
        'rank 2  step 140  1,204 images/s'
    """
    head, body = _split(text)
    if not body:
        return _one_line("".join(split_returns(text)[-1:]))  # what a terminal shows in the end
    formatted = _event(body, pod) if _is_event(body) else _pairs(body)
    return f"{_one_line(head)} {formatted}" if head else formatted


def split_returns(text: str) -> list[str]:
    """Split a line at carriage returns, with which a progress bar overwrites itself.

    Example:
        >>> split_returns("1/2 loss 0.5\\r2/2 loss 0.25")
        ['1/2 loss 0.5', '2/2 loss 0.25']
    """
    return [part for part in text.split("\r") if part.strip()]


def json_of(text: str) -> str:
    """Extract the JSON object of a line, unchanged; empty if it has none."""
    return text[text.index("{") :] if _split(text)[1] else ""


def number(value: float) -> str:
    """Format a float with at most 4 significant digits, an integer with all.

    Example:
        >>> number(0.431234), number(1203.7), number(76234)
        ('0.4312', '1,204', '76234')
    """
    if isinstance(value, int):
        return str(value)
    large = math.isfinite(value) and 9999.5 <= abs(value) < 1e15
    return f"{value:,.0f}" if large else f"{value:,.4g}"


def _split(text: str) -> tuple[str, dict[str, object]]:
    body = parse_object(text) or {}
    head = text.partition("{")[0].strip()  # torchrun may prepend "[default0]:"
    return (head, body) if not head or _is_event(body) else (text, {})


def _is_event(body: Mapping[str, object]) -> bool:
    return isinstance(body.get("event"), str)


def _event(body: Mapping[str, Any], pod: str) -> str:
    rest = dict(body)
    kind = rest.pop("event")
    rest.pop("time", None)  # the log has its own
    if kind not in WORLD:
        rest.pop("world_size", None)
    rank = _pop_rank(rest)
    rest = {name: value for name, value in rest.items() if value is not None or name not in _FIGURES}
    figures = [(name, _figure(name, rest)) for name in _FIGURES if is_number(rest.get(name))]
    if kind == "epoch" and figures and figures[0][0] == "epoch":
        figures[0] = ("epoch", f"{figures[0][1]} done")
        kind = ""
    elif kind == "step" and any(name == "step" for name, _ in figures):
        kind = ""
    parts = ["" if rank == pod else rank, _text(kind), *(value for _, value in figures), _pairs(rest)]
    return "  ".join(filter(None, parts))


def _pop_rank(rest: dict[str, object]) -> str:
    rank, role = rest.get("rank"), rest.get("role")
    if not is_number(rank):
        return ""
    del rest["rank"]
    if not isinstance(role, str):
        return f"rank {number(rank)}"
    del rest["role"]
    return role if role == "master" else f"{_text(role)}-{number(rank)}"


def _figure(name: str, rest: dict[str, Any]) -> str:
    factor, template = _FIGURES[name]
    value, total = rest.pop(name), rest.get(_TOTALS.get(name, ""))
    if name == "accuracy" and not 0 <= value <= 1:
        return f"accuracy {number(value)}"
    figure = number(value if factor == 1 else value * factor)
    if isinstance(value, int) and is_number(total):
        figure += f"/{number(rest.pop(_TOTALS[name]))}"
    return template.format(figure)


def _pairs(fields: Mapping[str, object]) -> str:
    return " ".join(f"{_text(name)}={_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    if isinstance(value, list | dict):
        items = value if isinstance(value, list) else value.values()
        if len(value) > MAX_ITEMS or any(isinstance(item, list | dict) for item in items):
            count = _count(value)
            return f"{count:,} value{'s' * (count != 1)}"
        return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else f"{{{_pairs(value)}}}"
    if isinstance(value, str):
        text = _text(value)
        return text if re.fullmatch(r"[^\s\"=]+", text) else f'"{text}"'
    if is_number(value):
        return number(value)
    return "null" if value is None else str(value).lower()


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


def _text(text: str) -> str:
    return _one_line(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _count(value: object) -> int:
    left, count = [value], 0
    while left:
        value = left.pop()
        if isinstance(value, list | dict):
            left.extend(value.values() if isinstance(value, dict) else value)
        else:
            count += 1
    return count
