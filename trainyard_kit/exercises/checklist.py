"""The ordered checks of an exercise, and the table of their results.

A check is a function that raises `NotYet` with one sentence of advice if the answer is not right. Any other
exception comes from the learner's code and is shown with the line that raised it.
"""

import ast
import inspect
import linecache
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

from kitlib.display.tables import Table
from kitlib.errors import KitError, plain

CELL = "<your cell>"
Answer = Callable[..., Any]  # a function or class that a learner wrote
RIGHT, NOT_YET, NOT_CHECKED = "✓", "not yet", "–"
UNTOUCHED = "it is unchanged: replace the TODO"


class NotYet(Exception):
    """The answer is not right yet; the message is one sentence of advice."""


@dataclass(frozen=True)
class ExerciseCheck:
    """One named check.

    Attributes:
        name: What holds if it passes: ``each image occurs once``.
        function: Takes the answers by name.
        essential: Whether the checks after it are skipped if it fails.
        last: Whether it runs only if all checks before it have passed.
        after: The name of a check on which it depends: it runs only if that one has passed.
    """

    name: str
    function: Callable[..., None]
    essential: bool = False
    last: bool = False
    after: str = ""


@dataclass(frozen=True)
class Finding:
    """The result of a check; ``right`` is None if the check did not run."""

    name: str
    right: bool | None
    advice: str = ""


@dataclass(frozen=True)
class Checklist:
    """The results of an exercise's checks; true if all are right.

    Example:
        >>> bool(Checklist((Finding("it has a length", True), Finding("it ends", False, "count to 9"))))
        False
    """

    rows: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return all(row.right for row in self.rows)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.rows)

    def table(self) -> Table:
        """Tabulate the results: mark, check, advice."""
        marks = {True: RIGHT, False: NOT_YET, None: NOT_CHECKED}
        rows = [(marks[row.right], row.name, row.advice or " ") for row in self.rows]
        return Table(("result", "check", "what to do"), rows)

    def summary(self) -> str:
        """Summarize how many checks pass."""
        right = sum(bool(row.right) for row in self.rows)
        rest = "." if self else "; continue with the first that does not."
        return f"{right} of {len(self.rows)} checks pass{rest}"

    def __repr__(self) -> str:
        return f"{self.table()!r}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return f"{self.table()._repr_html_()}<p>{self.summary()}</p>"


class Exercise:
    """The answers that a learner passes to ``kit.check``, and their checks.

    Args:
        answers: The names of the answers.
        seconds: CPU seconds that the checks of a function, class or pattern may take in a separate process.
            0 for data, which is checked in this process.
        stub: The notebook's answer before the learner begins: the source of a function or class, or data.
            No check of an unchanged stub passes.
        text: Whether the answer is a string, in place of a function or class.
        timeout_advice: The advice if the answer runs out of time.
        name: The exercise's name in its module.
    """

    def __init__(
        self,
        *answers: str,
        seconds: float = 0,
        stub: object = None,
        text: bool = False,
        timeout_advice: str = "look for a loop that does not end",
        name: str = "EXERCISE",
    ) -> None:
        self.answers, self.seconds, self.stub, self.text = answers, seconds, stub, text
        self.timeout_advice, self.name = timeout_advice, name
        self.checks: list[ExerciseCheck] = []

    def check(
        self, name: str, *, essential: bool = False, last: bool = False, after: str = ""
    ) -> Callable[..., Any]:
        """Decorate a function to add it to the checks."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            self.checks.append(ExerciseCheck(name, function, essential, last, after))
            return function

        return add

    def fail_first(self, reason: str) -> Checklist:
        """Fail the first check for a reason, and skip all others."""
        first, *rest = (check.name for check in self.checks)
        return Checklist((Finding(first, False, reason), *(Finding(name, None) for name in rest)))

    def rows(self, answers: Mapping[str, object]) -> Iterator[Finding]:
        """Run the checks in order in this process."""
        findings: list[Finding] = []
        stopped = False
        for check in self.checks:
            if stopped:
                row = Finding(check.name, None)
            elif check.last and not all(row.right for row in findings):
                row = Finding(check.name, None, "runs once the others pass")
            elif any(row.name == check.after and not row.right for row in findings):
                row = Finding(check.name, None, f"not checked yet: it needs {check.after!r}")
            else:
                row = _run(check, answers)
                stopped = check.essential and not row.right
            findings.append(row)
            yield row


def _run(check: ExerciseCheck, answers: Mapping[str, object]) -> Finding:
    try:
        check.function(**answers)
    except NotYet as reason:
        return Finding(check.name, False, str(reason))
    except NotImplementedError as error:
        detail = f": {error}" if str(error) else ""
        return Finding(check.name, False, f"it is not implemented yet{detail}")
    except KitError as error:
        return Finding(check.name, False, f"{error.what}; try: {plain(error.fix)}")
    except Exception as error:  # noqa: BLE001 whatever the learner's code raises
        return Finding(check.name, False, explain(error))
    return Finding(check.name, True)


def explain(error: BaseException) -> str:
    """Describe an exception in a line: its type, its message, and the line of the cell that raised it."""
    message = traceback.format_exception_only(error)[-1].strip()
    if "Traceback (most recent call last)" in message:  # of another process: its last line
        message = message.splitlines()[-1].strip()
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{message} (line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == CELL]
    if not frames:
        return f"it raises {message}"
    line = linecache.getline(CELL, frames[-1].lineno or 0).strip()
    return f"line {frames[-1].lineno}, {line}, raises {message}"


def field(manifest: object, path: str) -> object:
    """Look up a field of a manifest: ``spec.template.spec.containers.0.image``."""
    value = manifest
    for number, part in enumerate(steps := path.split(".")):
        at = ".".join(steps[:number]) or "the manifest"
        try:
            value = value[int(part)] if isinstance(value, list) else _mapping(value, at)[part]
        except (KeyError, IndexError, ValueError):
            raise NotYet(f"{at} has no {part}") from None
    return value


def mapping(manifest: object, path: str) -> Mapping[str, Any]:
    """Look up a field of a manifest that is a dict."""
    return _mapping(field(manifest, path), path)


def _mapping(value: object, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotYet(f"{at} is {describe(value)}, and should be a dict")
    return value


def describe(value: object) -> str:
    """Name a value briefly: ``None``, ``'TODO'``, ``a list of 3``."""
    if isinstance(value, list | tuple | dict | set) and value:
        return f"a {type(value).__name__} of {len(value)}"
    if inspect.isgenerator(value):
        return "a generator"
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:50]} …"


def definitions(cell: str) -> ast.Module:
    """Keep a cell's imports, functions, classes and the constants that they use; drop the rest.

    Example:
        >>> ast.unparse(definitions("double = lambda x: 2 * x; print(double(3))"))
        'double = lambda x: 2 * x'
    """
    tree = ast.parse(cell, CELL)
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
    kept_nodes = [node for item in tree.body if isinstance(item, kinds) for node in ast.walk(item)]
    used = {node.id for node in kept_nodes if isinstance(node, ast.Name)}
    tree.body = [item for item in tree.body if isinstance(item, kinds) or _constant(item, used)]
    tree.body.sort(key=lambda item: not isinstance(item, ast.Import | ast.ImportFrom))
    return tree


def _constant(statement: ast.stmt, used: set[str]) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        names = {
            node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
        }
        return isinstance(statement.value, ast.Lambda) or bool(names & used)
    return True


def check_number(result: object, expected: float, call: str, advice: str) -> None:
    """Compare the number that a call returned, to within 0.1 %."""
    try:
        if isinstance(result, bool | str | bytes) or not isinstance(result, SupportsFloat):
            raise TypeError
        number = float(result)  # of NumPy, of a tensor, a fraction
    except (TypeError, ValueError):
        hint = ": return it" if result is None else ""
        raise NotYet(f"{call} is {describe(result)}, and should be a number{hint}") from None
    if not abs(number - expected) <= max(1e-3 * abs(expected), 1e-9):  # nor is it nan
        if number in _rounded(expected):
            advice = "do not round it"
        elif math.isclose(number, 100 * expected, rel_tol=1e-3):
            advice = "it is a hundred times as much, like a percentage, or cents"
        raise NotYet(f"{call} is {number:.6g}, and should be {expected:.6g}: {advice}")


def _rounded(value: float) -> set[float]:
    """List the results of rounding a number that are seldom those of another mistake."""
    whole: set[float] = {math.floor(value), math.ceil(value)} if value > 5 else set()
    return whole | {number for digits in range(1, 5) if (number := round(float(value), digits)) % 1}


def parts(result: object, names: Sequence[str], call: str) -> list[object]:
    """List the numbers that a call returned as a tuple, list or array: one for each name."""
    values = list(result) if isinstance(result, Iterable) and not isinstance(result, str | dict | set) else []
    if len(values) != len(names):
        expected = f"{len(names)} numbers: {', '.join(names)}"
        raise NotYet(f"{call} returns {describe(result)}, and should return {expected}")
    return values
