"""Find the traceback that explains a failure in the logs of many ranks.

When one rank raises, the others lose their connection and raise too, and torchrun then adds a traceback of
its own for each. The cause is the one that was written first. Pure: log lines in, a traceback out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_PREFIX = re.compile(r"(?:\[(?:rank|default)(\d+)\]:\s?)+")  # torch.distributed's, and torchrun's --tee
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'((?:\[(?:rank|default)\d+\]:\s?)*)  File ".*", line \d+, in ')
_GROUP = re.compile(r"\s+[|+]")  # the margin of an exception group
_SYNTAX = re.compile(r'  File ".*", line \d+$')  # of the program itself: it has no frame
_EXCEPTION = re.compile(r"(?!(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b)(?:[^\W\d]\w*\.)*[^\W\d]\w*(?::|$)")
_CRASH = re.compile(r"Fatal Python error: |terminate called ")
_CAUSE = "The above exception was the direct cause"
# Between the tracebacks of a chain; the third is of torch's spawn, the fourth of pools of processes.
_JOINT = re.compile(rf"During handling of the above exception|{_CAUSE}|-- Process \d+ terminated|\"\"\"$")
_ORIGINAL = f"Original {_HEAD}"  # of a data loader's worker
# What a process or its launcher writes after a message: log records, progress, other reports on its end.
_OTHER = re.compile(
    r"\[?[DIWEF]\d{4} |\[[A-Z]\d{3,4} |\[?\d{2,4}[-/:]\d\d|\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b"
    r"|(?:epoch|step|iter|train|test|val|rank|wandb|srun)\b|.*\d+%\||.*:\d+: \w*Warning: "
    r"|[=*-]{5,}|[{\[]['\"]|Exception |Killed$|Fatal ",
    re.IGNORECASE,
)
# The line before the traceback of an exception that the process survived: a thread's, or one that was logged.
_SURVIVED = re.compile(
    r"Exception in thread |Exception ignored |.*\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b"
)
_NOISE = ("ChildFailedError", "SignalException", "torch.distributed.elastic.multiprocessing")
_ROOT_CAUSE = re.compile(
    r"\s+rank\s*: (?P<rank>\d+)|\s+exitcode\s*: (?P<code>\d+)|\s+traceback\s*: (?P<error>Signal \d+ .*)"
)
_REPORT = re.compile(r"failed \(exitcode|torch[./]distributed[./]elastic|Traceback ")  # torchrun on the end
# What a GPU's thread wrote, of thousands, before the exception that only says that there was one.
_ON_DEVICE = re.compile(r"(\S+:\d+): .*(Assertion [`'\"].*[`'\"] failed)")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
MOST_LINES, LONGEST = 40, 4000  # of a message, and characters of a chain's


@dataclass(frozen=True)
class Line:
    """A line of a pod's log, and its time: RFC 3339 in UTC, as the API server gives it."""

    time: str
    text: str


@dataclass(frozen=True)
class Traceback:
    """What one process wrote when it failed.

    Attributes:
        time: When its first line was written.
        text: The whole, without torch's prefixes.
        error: The exception's type and message: of a chain the last one, of a process that reports another's
            the other's, of a group all. The text may have more of its lines, and its notes.
        rank: The process's rank where torch named it, else None.
        survived: Whether it ended a thread alone, or was only logged: the process may have gone on.
    """

    time: str
    text: str
    error: str
    rank: int | str | None = None
    survived: bool = False


def find(lines: Iterable[Line]) -> list[Traceback]:
    """Find the tracebacks in one pod's log, without torchrun's own."""
    by_prefix: dict[str, list[Line]] = {}  # processes of one pod write through each other
    for line in lines:
        prefix = _PREFIX.match(line.text)
        text = line.text[prefix.end() :] if prefix else line.text
        if not text.startswith('{"'):  # an event that came in between
            by_prefix.setdefault(prefix[0].strip() if prefix else "", []).append(Line(line.time, text))
    found = [traceback for prefix, own in by_prefix.items() for traceback in _find_in(own, prefix)]
    return [failure for failure in found if not any(noise in failure.error for noise in _NOISE)]


def first(logs: Mapping[int | str, Iterable[Line]]) -> Traceback | None:
    """Find the traceback that was written first, of the pods with these node ranks.

    One that its process survived explains a failure only where there is no other. Without any, what torchrun
    reports of the process that a signal ended, or that ended by itself, with its last line.
    """
    logs = {rank: list(lines) for rank, lines in logs.items()}
    found = [
        (traceback.survived, time_key(traceback.time), rank, traceback)
        for rank, lines in logs.items()
        for traceback in find(lines) or _root_cause(lines)
    ]
    if not found:
        return None
    *_, rank, traceback = min(found, key=lambda candidate: candidate[:3])
    return traceback if traceback.rank is not None else replace(traceback, rank=rank)


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
    named = re.search(r"\[rank(\d+)\]", prefix)
    rank = int(named[1]) if named else None
    lines, found, index = _joined(lines), list[Traceback](), 0
    texts = [line.text.rstrip() for line in lines]
    while index < len(texts):
        start, index, kept, error = index, *_block(texts, index)
        # Two processes write through each other: these frames are of neither, and the messages follow.
        mixed = _FRAME.match(error) and index < len(texts) and _is_head(texts[index])
        if kept and not mixed:
            survived = bool(start and _SURVIVED.match(texts[start - 1]))
            error = error if rank is not None else _own_lines(error)
            if "device-side assert" in error:
                written = (match for text in texts[:start] if (match := _ON_DEVICE.match(text)))
                error = next((f"{match[2]}, {match[1]}: {error}" for match in written), error)
            found.append(Traceback(lines[start].time, "\n".join(kept), error, rank, survived))
    return found


def _own_lines(message: str) -> str:
    """Shorten a message to the lines that are surely its own, where the log is that of several processes."""
    first, *others = message.split("\n")
    kept = [first]
    for line in others:
        whole = "\n".join(kept).rstrip()
        is_open = whole.endswith((":", ",", "!")) or any(
            whole.count(one) > whole.count(two) for one, two in _PAIRS
        )
        if line and not line.startswith((" ", "\t")) and not is_open:
            break
        kept.append(line)
    return "\n".join(kept).rstrip()


def _block(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read what begins at an index: the index after it, its lines and its error; no lines if nothing does."""
    index, kept, error = _part(texts, start)
    while kept:
        near = next((end for end in range(index, min(index + 6, len(texts))) if _is_head(texts[end])), None)
        between = texts[index:near]
        if near is None or not all(not line or _JOINT.match(line) for line in between):
            break
        if not any(between) and texts[near] != _ORIGINAL:
            break
        index, more, last = _part(texts, near)
        kept += [*between, *more]
        named = any(line.startswith(_CAUSE) for line in between) and error not in last
        error = f"{last} (from {error})"[:LONGEST] if named else last
    return index, kept, error


def _part(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read one traceback of a chain, or another report on a process's end."""
    text = texts[start]
    if text.startswith("  + Exception Group"):
        return _group(texts, start)
    if text in (_HEAD, _ORIGINAL):
        index, kept, error = _plain(texts, start + 1)
        return index, [text, *kept], error
    if _SYNTAX.match(text) and any(re.match(r"\w+Error: ", line) for line in texts[start + 1 : start + 4]):
        return _plain(texts, start)
    if _CRASH.match(text):
        index, kept = _message(texts, start)
        return index, kept, "\n".join(kept[:2])  # of C++, the second says what()
    return start + 1, [], ""


def _is_head(text: str) -> bool:
    return text in (_HEAD, _ORIGINAL) or text.startswith("  + Exception Group")


def _plain(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read frames and the message after them; lines of other processes in between are left out."""
    frames, index = list[str](), start
    while index < len(texts) and not _is_head(texts[index]):
        text = texts[index]
        if text.startswith(" "):
            frames.append(text)
        elif _EXCEPTION.match(text) and not _FRAME.match("".join(texts[index + 1 : index + 2])):
            end, message = _message(texts, index)
            return end, [*frames, *message], "\n".join(message)
        index += 1
    return index, frames, frames[-1] if frames else ""  # it is cut off


def _message(texts: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Read a message from its first line on: it ends before what others write, or with the log."""
    index = start + 1
    while index < min(start + MOST_LINES, len(texts)):
        text = texts[index]
        if _is_head(text) or _JOINT.match(text) or (_OTHER.match(text) and not text.startswith((" ", "\t"))):
            break
        index += 1
    while not texts[index - 1]:
        index -= 1
    return index, list(texts[start:index])


def _group(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read an exception group: its error names the exceptions in it."""
    index = next((end for end in range(start, len(texts)) if not _GROUP.match(texts[end])), len(texts))
    lines = [re.sub(r"^\s+[|+]-? ?", "", text) for text in texts[start:index]]
    while any(_GROUP.match(line) for line in lines):
        lines = [re.sub(r"^\s+[|+]-? ?", "", line) for line in lines]
    errors = [line for line in lines if _EXCEPTION.match(line) and not _is_head(line) and line != _HEAD]
    own, *others = errors or [""]
    leaves = [line for line in others if not re.search(r"\(\d+ sub-exceptions?\)$", line)]
    return index, list(texts[start:index]), "; ".join([own, *leaves])


def _root_cause(lines: Iterable[Line]) -> list[Traceback]:
    """Read torchrun's report of the process that failed first, if it wrote no traceback."""
    own = list(lines)
    start = next((index for index, line in enumerate(own) if line.text.startswith("Root Cause")), len(own))
    found = [match for line in own[start : start + 8] if (match := _ROOT_CAUSE.match(line.text))]
    rank = next((int(match["rank"]) for match in found if match["rank"]), None)
    error = next((match["error"] for match in found if match["error"]), None)
    code = next((match["code"] for match in found if match["code"]), None)
    if code and not error:  # as sys.exit("message") ends a program
        end = next((index for index, line in enumerate(own) if _REPORT.search(line.text)), start)
        written = (_PREFIX.sub("", line.text).strip() for line in reversed(own[:end]))
        last = next((text for text in written if text and not text.startswith('{"')), "")
        error = f"exit code {code}; its last line: {last}" if last else f"exit code {code}"
    text = "\n".join(line.text for line in own[start : start + 8])
    return [Traceback(own[start].time, text, error, rank)] if error else []


def _joined(lines: Sequence[Line]) -> list[Line]:
    """Have each head directly before its first frame: torchrun mixes a process's two streams."""
    made = list(lines)
    for index, line in enumerate(made):
        if line.text.rstrip() == _HEAD:
            near = range(index + 1, min(index + 6, len(made)))
            frame = next((index for index in near if made[index].text.startswith("  ")), index + 1)
            made[index:frame] = [*made[index + 1 : frame], line]
    return made
