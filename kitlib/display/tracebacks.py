"""Find the traceback that explains a failure in the logs of many ranks.

When one rank raises, the others lose their connection and raise too, and torchrun then adds a traceback of
its own for each. The cause is the one that was written first. Pure: log lines in, a traceback out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PREFIX = re.compile(r"(?:\[(?:rank|default)(\d+)\]:\s?)+")  # torch.distributed's, and torchrun's --tee
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'((?:\[(?:rank|default)\d+\]:\s?)*)  File ".*", line \d+, in ')
_THREAD = "Exception in thread "
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_NOISE = ("ChildFailedError", "SignalException", "torch.distributed.elastic.multiprocessing")


@dataclass(frozen=True)
class Line:
    """A line of a pod's log.

    Attributes:
        time: RFC 3339 in UTC, as the API server gives it.
        text: The line.
    """

    time: str
    text: str


@dataclass(frozen=True)
class Traceback:
    """What one process wrote when it failed.

    Attributes:
        time: When its first line was written.
        text: The whole, without torch's prefixes.
        rank: The process's rank where torch named it, else None.
        thread: Whether it ended a thread alone: the process may have gone on.
    """

    time: str
    text: str
    rank: int | str | None = None
    thread: bool = False

    @property
    def error(self) -> str:
        """Its last line: the exception's type and message."""
        return self.text.rsplit("\n", 1)[-1]


def find(lines: Iterable[Line]) -> list[Traceback]:
    """Find the tracebacks in one pod's log, without torchrun's own."""
    by_prefix: dict[str, list[Line]] = {}  # processes of one pod write through each other
    for line in lines:
        prefix = _PREFIX.match(line.text)
        text = line.text[prefix.end() :] if prefix else line.text
        if not text.startswith('{"'):  # an event that came in between
            by_prefix.setdefault(prefix[0].strip() if prefix else "", []).append(Line(line.time, text))
    found = [traceback for prefix, own in by_prefix.items() for traceback in _find_in(own, prefix)]
    return [each for each in found if not any(noise in each.error for noise in _NOISE)]


def first(logs: Mapping[int | str, Iterable[Line]]) -> Traceback | None:
    """Find the traceback that was written first, of the pods with these node ranks.

    One that ended a thread alone, such as that which renews a lease at an etcd, explains a failure only where
    there is no other.
    """
    found = [
        (each.thread, time_key(each.time), rank, each) for rank, lines in logs.items() for each in find(lines)
    ]
    if not found:
        return None
    *_, rank, traceback = min(found, key=lambda each: each[:3])
    return Traceback(traceback.time, traceback.text, rank if traceback.rank is None else traceback.rank)


def with_head(texts: Sequence[str]) -> list[str]:
    """Give the first traceback its head: of a long one a kubelet keeps the last 2048 bytes."""
    for index, text in enumerate(texts):
        if text.rstrip().endswith(_HEAD):
            break
        if frame := _FRAME.match(text):
            return [f"{frame[1]}{_HEAD}", *texts[index:]]
    return list(texts)


def time_key(time: str) -> str:
    """Pad an RFC 3339 time in UTC so that it sorts as text: Go leaves out trailing zeros."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return f"{whole}.{fraction:0<9}"


def _find_in(lines: Sequence[Line], prefix: str) -> list[Traceback]:
    named = re.search(r"\[rank([0-9]{1,9})\]", prefix)
    rank = int(named[1]) if named else None
    lines, found, index = _joined(lines), [], 0
    while index < len(lines):
        if lines[index].text.rstrip() != _HEAD:
            index += 1
            continue
        start, index = index, _end(lines, index)
        while (head := _chained(lines, index)) is not None:
            index = _end(lines, head)
        text = "\n".join(line.text.rstrip() for line in lines[start:index])
        thread = start > 0 and lines[start - 1].text.startswith(_THREAD)
        found.append(Traceback(lines[start].time, text, rank, thread))
    return found


def _joined(lines: Sequence[Line]) -> list[Line]:
    """Have each head directly before its first frame: torchrun mixes a process's two streams."""
    made = list(lines)
    for index, line in enumerate(made):
        if line.text.rstrip() == _HEAD:
            near = range(index + 1, min(index + 6, len(made)))
            frame = next((each for each in near if made[each].text.startswith("  ")), index + 1)
            made[index:frame] = [*made[index + 1 : frame], line]
    return made


def _end(lines: Sequence[Line], head: int) -> int:
    """Index after the exception's message: the first line after the head that is not indented."""
    for index in range(head + 1, len(lines)):
        if lines[index].text.strip() and not lines[index].text.startswith(" "):
            return index + 1
    return len(lines)


def _chained(lines: Sequence[Line], end: int) -> int | None:
    """Index of the next traceback of a chain, if the lines between say that it is one."""
    rest = [index for index in range(end, min(end + 5, len(lines))) if lines[index].text.strip()]
    if len(rest) < 2 or not lines[rest[0]].text.startswith(_CHAIN) or lines[rest[1]].text.rstrip() != _HEAD:
        return None
    return rest[1]
