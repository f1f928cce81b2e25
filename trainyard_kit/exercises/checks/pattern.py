"""07: a regular expression for the step and the loss in a program's own log format."""

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
    timeout_advice=r"nested repetition such as (\S+)+ tries every division of a line; one + is enough",
)
# The lines that the notebook shows, and lines of a longer run that it does not show.
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
MAX_CHARACTERS = 1000  # of a pattern that are examined


def events(pattern: str, text: str = SHOWN) -> list[dict[str, object]]:
    """List the fields of each matching line, as the kit parses them."""
    lines = [Line("2026-01-01T00:00:00Z", line) for line in text.splitlines()]
    return [event.fields for event in parse_text({0: lines}, pattern)]


def training(pattern: str) -> list[dict[str, object]]:
    """List the fields of the training lines."""
    return events(pattern, "\n".join(line for line in SHOWN.splitlines() if "[train]" in line))


def unescaped(pattern: str) -> str:
    """Name the characters of the log that have a special meaning in the pattern; empty if there are none.

    Example:
        >>> unescaped(r"[train] it (?P<step>\\d+) | nll")
        '; [train] matches one of the letters t, r, a, i, n: write \\\\[train\\\\]; | means "or": write \\\\|'
    """
    message, pattern = "", pattern[:MAX_CHARACTERS]
    for letters in re.findall(r"(?<!\\)\[([a-z]{3,})\\?\]", pattern):
        message += f"; [{letters}] matches one of the letters {', '.join(dict.fromkeys(letters))}"
        message += rf": write \[{letters}\]"
    if re.search(r"(?<!\\)(?:\\\\)*\[[^\]]*$", pattern):
        message += r"; [ opens a character class that no ] closes: write \["
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
        events(pattern)
    except BadInput as error:
        if "has no named group" not in error.what:
            syntax = "; Python names a group with (?P<step>…)" if re.search(r"\(\?<[a-z]", pattern) else ""
            raise NotYet(error.what + syntax + unescaped(pattern)) from None
    missing = [f"(?P<{name}>…)" for name in ("step", "loss") if name not in re.compile(pattern).groupindex]
    if missing:
        raise NotYet(f"name a group for each number: missing {' and '.join(missing)}" + unescaped(pattern))


@EXERCISE.check("each training line matches", essential=True)
def matches_training_lines(pattern: str) -> None:
    if (number := len(training(pattern))) != len(TRAINED):
        lost = next(line for line in SHOWN.splitlines() if "[train]" in line and not events(pattern, line))
        hint = unescaped(pattern) or f"; compare the spaces, bars and signs of {lost[9:]}"
        raise NotYet(f"{number} of {len(TRAINED)} lines match{hint}")


@EXERCISE.check("step is the iteration")
def step_numbers(pattern: str) -> None:
    rows = training(pattern)
    if [row.get("step") for row in rows] != list(TRAINED):
        hint = "what comes before it?"
        if all(str(step).endswith(str(row.get("step"))) for step, row in zip(TRAINED, rows, strict=True)):
            hint = ".* before the group also matches its first digits: write the word before it"
        raise NotYet(
            f"step is {values(rows, 'step')}, and should be 50, 100, 150: {hint}" + unescaped(pattern)
        )


@EXERCISE.check("loss is the number after nll, with its exponent")
def loss_numbers(pattern: str) -> None:
    rows = training(pattern)
    if [row.get("loss") for row in rows] != list(TRAINED.values()):
        raise NotYet(
            f"loss is {values(rows, 'loss')}, and should be 1.8412, 0.92071, 0.7714" + unescaped(pattern)
        )


@EXERCISE.check("validation lines do not match")
def no_validation(pattern: str) -> None:
    if len(events(pattern)) > len(TRAINED):
        message = "the line with [valid] matches as well: include the kind of line in the pattern"
        if pattern.startswith("(?!"):
            message = (
                "the search continues within the line, behind the text that (?!…) excludes: write ^ before it"
            )
        raise NotYet(message + unescaped(pattern))


@EXERCISE.check("it also matches a longer run", last=True)
def matches_longer_run(pattern: str) -> None:
    rows = events(pattern, LONGER)
    if {row.get("step"): row.get("loss") for row in rows} != TRAINED_LONGER:
        numbers = f"step {values(rows, 'step') or 'nothing'} and loss {values(rows, 'loss') or 'nothing'}"
        raise NotYet(f"for a longer run it finds {numbers}: numbers may have more digits, and 700 may differ")
