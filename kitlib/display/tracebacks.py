"""Find the tracebacks in a log: of Python, C++, chained ones, and those of child processes.

torchrun's own traceback for each process is dropped. Which of a run's tracebacks explains
its failure is in `kitlib.causes.rank_ends`. Pure: log lines in, tracebacks out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    r"|(?:epoch|step|iter|train|test|val|rank|wandb|srun)\b|.*\d%\||.*:\d+: \w*Warning: "
    r"|[=*-]{5,}|[{\[]['\"]|Exception |Killed$|Fatal ",
    re.IGNORECASE,
)
# The line before the traceback of an exception that the process survived: a thread's, or one that was logged.
_SURVIVED = re.compile(
    r"Exception in thread |Exception ignored |.*\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b"
)
_NOISE = ("ChildFailedError", "SignalException", "torch.distributed.elastic.multiprocessing")
LAUNCHER = re.compile(r"failed \(exitcode|torch[./]distributed[./]elastic")  # torchrun on the end
# What a GPU's thread wrote, of thousands, before the exception that only says that there was one.
_ON_DEVICE = re.compile(r"(\S+:\d+): .*(Assertion [`'\"].{1,500}?[`'\"] failed)")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
MAX_LINES, LONGEST = 40, 4000  # of a message, and characters of a chain's
LONGEST_LINE, MAX_MARGINS = 16_384, 16  # characters of a line, and exception groups around an exception


@dataclass(frozen=True)
class Line:
    """A line of a pod's log, and its time: RFC 3339 in UTC, as the API server gives it."""

    time: str
    text: str


@dataclass(frozen=True)
class Traceback:
    """The traceback of one process that failed.

    Attributes:
        time: When its first line was written.
        text: The whole traceback, without torch's prefixes.
        error: The exception's type and message: of a chain the last one, of a process that reports a child's
            the child's, of a group all. The text may have more of its lines, and its notes.
        rank: The process's rank if torch named it, else None.
        survived: Whether it ended only a thread, or was only logged: the process may have continued.
    """

    time: str
    text: str
    error: str
    rank: int | str | None = None
    survived: bool = False

    @property
    def is_python(self) -> bool:
        """Whether Python wrote it: not a crash in C++, which ends by a signal."""
        return not _CRASH.match(self.error)


def find(lines: Iterable[Line]) -> list[Traceback]:
    """Find the tracebacks in one pod's log, without torchrun's own."""
    by_prefix: dict[str, list[Line]] = {}  # lines of a pod's processes are interleaved
    for line in lines:
        text = line.text[:LONGEST_LINE]
        prefix = _PREFIX.match(text)
        text = text[prefix.end() :] if prefix else text
        if not text.startswith('{"'):  # an event that came in between
            by_prefix.setdefault(prefix[0].strip() if prefix else "", []).append(Line(line.time, text))
    tracebacks = [traceback for prefix, stream in by_prefix.items() for traceback in _find_in(stream, prefix)]
    return [failure for failure in tracebacks if not _is_launchers(failure)]


def _is_launchers(failure: Traceback) -> bool:
    """Check whether torchrun wrote it, perhaps without its message yet."""
    cut = failure.text.endswith(failure.error) and failure.error.startswith(" ")
    return any(noise in failure.error for noise in _NOISE) or (
        cut and "torch/distributed/run.py" in failure.text
    )


def without_prefix(text: str) -> str:
    """Remove the rank that torch or torchrun has put before a line."""
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def rank_of(text: str) -> int | None:
    """Read the rank that torch or torchrun has put before a line; None if there is none."""
    prefix = _PREFIX.match(text)
    return int(prefix[1]) if prefix else None


def with_head(texts: Sequence[str]) -> list[str]:
    """Add the head of the first traceback: a kubelet keeps the last 2048 bytes of a message."""
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
    lines, tracebacks, index = _joined(lines), list[Traceback](), 0
    texts = [line.text.rstrip() for line in lines]
    asserted: tuple[int, str] | None = None  # searched for once, where an error says that there was one
    while index < len(texts):
        start, index, block, error = index, *_block(texts, index)
        # Interleaved tracebacks of two processes: these frames belong to neither, the messages follow.
        mixed = _FRAME.match(error) and index < len(texts) and _is_head(texts[index])
        if block and not mixed:
            survived = bool(start and _SURVIVED.match(texts[start - 1]))
            error = error if rank is not None else _own_lines(error)
            if "device-side assert" in error:
                asserted = asserted or _device_assertion(texts)
                error = f"{asserted[1]}: {error}" if asserted[0] < start else error
            tracebacks.append(Traceback(lines[start].time, "\n".join(block), error, rank, survived))
    return tracebacks


def _device_assertion(texts: Sequence[str]) -> tuple[int, str]:
    """Find the first assertion that failed on a GPU: its index and text."""
    written = ((index, match) for index, text in enumerate(texts) if (match := _ON_DEVICE.match(text)))
    return next(((index, f"{match[2]}, {match[1]}") for index, match in written), (len(texts), ""))


def _own_lines(message: str) -> str:
    """Shorten a message to the lines that are certainly its own, in a log of several processes."""
    first, *following = message.split("\n")
    message_lines = [first]
    for line in following:
        whole = "\n".join(message_lines).rstrip()
        is_open = whole.endswith((":", ",", "!")) or any(
            whole.count(one) > whole.count(two) for one, two in _PAIRS
        )
        if line and not line.startswith((" ", "\t")) and not is_open:
            break
        message_lines.append(line)
    return "\n".join(message_lines).rstrip()


def _block(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read the report that begins at an index: the next index, its lines and its error; no lines if none."""
    index, lines, error = _part(texts, start)
    while lines:
        near = next((end for end in range(index, min(index + 6, len(texts))) if _is_head(texts[end])), None)
        between = texts[index:near]
        if near is None or not all(not line or _JOINT.match(line) for line in between):
            break
        if not any(between) and texts[near] != _ORIGINAL:
            break
        index, more, last = _part(texts, near)
        lines += [*between, *more]
        named = any(line.startswith(_CAUSE) for line in between) and error not in last
        error = f"{last} (from {error})"[:LONGEST] if named else last
    return index, lines, error


def _part(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read one traceback of a chain, or another report on a process's end."""
    text = texts[start]
    if text.startswith("  + Exception Group"):
        return _group(texts, start)
    if text in (_HEAD, _ORIGINAL):
        index, lines, error = _plain(texts, start + 1)
        return index, [text, *lines], error
    if _SYNTAX.match(text) and any(re.match(r"\w+Error: ", line) for line in texts[start + 1 : start + 4]):
        return _plain(texts, start)
    if _CRASH.match(text):
        index, lines = _message(texts, start)
        return index, lines, "\n".join(lines[:2])  # of C++, the second says what()
    return start + 1, [], ""


def _is_head(text: str) -> bool:
    return text in (_HEAD, _ORIGINAL) or text.startswith("  + Exception Group")


def _plain(texts: Sequence[str], start: int) -> tuple[int, list[str], str]:
    """Read frames and the message after them, without lines of other processes in between."""
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
    """Read a message from its first line: it ends before other output, or with the log."""
    index = start + 1
    while index < min(start + MAX_LINES, len(texts)):
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
    for _ in range(MAX_MARGINS):
        lines = [re.sub(r"^\s+[|+]-? ?", "", line) for line in lines]
    errors = [line for line in lines if _EXCEPTION.match(line) and not _is_head(line) and line != _HEAD]
    title, *exceptions = errors or [""]
    leaves = [line for line in exceptions if not re.search(r"\(\d{1,9} sub-exceptions?\)$", line)]
    return index, list(texts[start:index]), "; ".join([title, *leaves])


def _joined(lines: Sequence[Line]) -> list[Line]:
    """Move each head directly before its first frame: torchrun mixes a process's two streams."""
    sequence = list(lines)
    for index, line in enumerate(sequence):
        if line.text.rstrip() == _HEAD:
            near = range(index + 1, min(index + 6, len(sequence)))
            frame = next((index for index in near if sequence[index].text.startswith("  ")), index + 1)
            sequence[index:frame] = [*sequence[index + 1 : frame], line]
    return sequence
