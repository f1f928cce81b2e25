"""07: a regular expression that finds step and loss in the output of a program that prints its own way."""

import re
from collections.abc import Sequence

from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from trainyard_kit.exercises.checklist import Exercise, NotYet
from trainyard_kit.program_output import parse_text

EXERCISE = Exercise(
    "pattern",
    seconds=5,
    text=True,
    stub=r"TODO (?P<step>\d+) TODO",
    endless=r"a group that repeats what repeats, as (\S+)+, divides a line in every way; one + is enough",
)
# What the notebook shows; and lines of a longer run, which it does not.
SHOWN = """\
12:04:31 [train] ep 0, it 50/700 | lr 2.0e-03 | nll 1.8412e+00 | 911 img/s
12:04:33 [train] ep 0, it 100/700 | lr 2.0e-03 | nll 9.2071e-01 | 934 img/s
12:04:34 [valid] ep 0, it 100/700 | nll 1.0231e+00 | top-1 71.94 %
12:04:36 [train] ep 1, it 150/700 | lr 1.8e-03 | nll 7.7140e-01 | 902 img/s
"""
LONGER = """\
loading 700 batches from /data
23:59:58 [train] ep 12, it 9050/20000 | lr 1.0e-04 | nll 4.0000e-02 | 1911 img/s
00:00:01 [valid] ep 12, it 9050/20000 | nll 2.3100e-01 | top-1 93.10 %
00:00:02 [train] ep 13, it 10050/20000 | lr 9.0e-05 | nll 3.5000e-03 | 1870 img/s
"""
TRAINED = {50: 1.8412, 100: 0.92071, 150: 0.7714}
TRAINED_LONGER = {9050: 0.04, 10050: 0.0035}
LONGEST = 1000  # characters of a pattern that is looked at


def found(pattern: str, text: str = SHOWN) -> list[dict[str, object]]:
    """Find what the kit would: the fields of each line that matches."""
    lines = [Line("2026-01-01T00:00:00Z", line) for line in text.splitlines()]
    return [event.fields for event in parse_text({0: lines}, pattern)]


def training(pattern: str) -> list[dict[str, object]]:
    """Find in the training lines alone."""
    return found(pattern, "\n".join(line for line in SHOWN.splitlines() if "[train]" in line))


def unescaped(pattern: str) -> str:
    """Name the characters of the log's lines that mean something else in the pattern; or nothing.

    Example:
        >>> unescaped(r"[train] it (?P<step>\\d+) | nll")
        '; [train] means one of the letters t, r, a, i, n: write \\\\[train\\\\]; | means "or": write \\\\|'
    """
    message, pattern = "", pattern[:LONGEST]
    for letters in re.findall(r"(?<!\\)\[([a-z]{3,})\\?\]", pattern):
        message += f"; [{letters}] means one of the letters {', '.join(dict.fromkeys(letters))}"
        message += rf": write \[{letters}\]"
    if re.search(r"(?<!\\)(?:\\\\)*\[[^\]]*$", pattern):
        message += r"; [ opens a set of characters that no ] closes: write \["
    outside = re.sub(r"\\.|\[[^\]]*\]", "", pattern)
    while outside != (outside := re.sub(r"\([^()]*\)", "", outside)):
        pass
    if "|" in outside:
        message += r'; | means "or": write \|'
    return message


def values(rows: Sequence[dict[str, object]], group: str) -> str:
    return ", ".join(str(row.get(group)) for row in rows)


@EXERCISE.check("it is a regular expression with the groups step and loss", essential=True)
def is_pattern(pattern: str) -> None:
    try:
        found(pattern)
    except BadInput as error:
        if "names no number" not in error.what:
            syntax = "; Python names a group by (?P<step>…)" if re.search(r"\(\?<[a-z]", pattern) else ""
            raise NotYet(error.what + syntax + unescaped(pattern)) from None
    missing = [f"(?P<{name}>…)" for name in ("step", "loss") if name not in re.compile(pattern).groupindex]
    if missing:
        raise NotYet(f"name a group for each number: {' and '.join(missing)} is missing" + unescaped(pattern))


@EXERCISE.check("each line of the training is found", essential=True)
def each_line(pattern: str) -> None:
    if (number := len(training(pattern))) != len(TRAINED):
        lost = next(line for line in SHOWN.splitlines() if "[train]" in line and not found(pattern, line))
        hint = unescaped(pattern) or f"; compare the spaces, bars and signs of {lost[9:]}"
        raise NotYet(f"{number} of {len(TRAINED)} lines match{hint}")


@EXERCISE.check("step is the number of the iteration")
def steps(pattern: str) -> None:
    rows = training(pattern)
    if [row.get("step") for row in rows] != list(TRAINED):
        hint = "what is before it?"
        if all(str(step).endswith(str(row.get("step"))) for step, row in zip(TRAINED, rows, strict=True)):
            hint = ".* before the group takes its first digits, too: write the word before it"
        raise NotYet(
            f"step is {values(rows, 'step')}, and should be 50, 100, 150: {hint}" + unescaped(pattern)
        )


@EXERCISE.check("loss is the number after nll, with its exponent")
def losses(pattern: str) -> None:
    rows = training(pattern)
    if [row.get("loss") for row in rows] != list(TRAINED.values()):
        raise NotYet(
            f"loss is {values(rows, 'loss')}, and should be 1.8412, 0.92071, 0.7714" + unescaped(pattern)
        )


@EXERCISE.check("lines of the validation are left out")
def no_validation(pattern: str) -> None:
    if len(found(pattern)) > len(TRAINED):
        message = "the line with [valid] matches as well: say which kind of line you mean"
        if pattern.startswith("(?!"):
            message = "the search begins anew within a line, behind what (?!…) refuses: write ^ before it"
        raise NotYet(message + unescaped(pattern))


@EXERCISE.check("it also reads a longer run", last=True)
def longer(pattern: str) -> None:
    rows = found(pattern, LONGER)
    if {row.get("step"): row.get("loss") for row in rows} != TRAINED_LONGER:
        numbers = f"step {values(rows, 'step') or 'nothing'} and loss {values(rows, 'loss') or 'nothing'}"
        raise NotYet(f"of a longer run it reads {numbers}: numbers may have more digits, and 700 be another")
