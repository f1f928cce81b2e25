"""Run a learner's code in a separate process, where it may loop forever, exit or crash.

The process gets the cell that contains the function or class, executes the cell's definitions and runs the
checks. It appends each result to a file as a line of JSON, so that the check that crashed is known.

    python -m trainyard_kit.exercises.sandbox MODULE CELL RESULTS NAMES
"""

import ast
import contextlib
import importlib
import inspect
import json
import linecache
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from kitlib.display.progress import progress
from trainyard_kit.exercises.checklist import (
    CELL,
    UNTOUCHED,
    Checklist,
    Exercise,
    Finding,
    NotYet,
    definitions,
    describe,
    explain,
)

HERE = Path(__file__).resolve().parent
LEARNER = "learner"
WAITING = 6
TICK = 0.5  # seconds between two states of the line


def check_answer(exercise: Exercise, answers: Mapping[str, object]) -> Checklist:
    """Run an exercise's checks of functions, classes or strings in a new process."""
    names = [check.name for check in exercise.checks]
    try:
        cell, by_name = _text(answers) if exercise.text else _cell_of(answers)
    except NotYet as reason:
        return exercise.fail_first(str(reason))
    if isinstance(exercise.stub, str) and _is_stub(exercise.stub, cell):
        return exercise.fail_first(UNTOUCHED)
    module = exercise.checks[0].function.__module__
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder:
        source, results = Path(folder, "cell.py"), Path(folder, "results")
        source.write_text(cell, encoding="utf-8")
        results.touch()
        arguments = [module, exercise.name, str(source), str(results), json.dumps(by_name)]
        command = [sys.executable, "-m", "trainyard_kit.exercises.sandbox", *arguments]
        with checking(f"running {len(names)} checks in a separate process") as show:

            def count() -> str:
                return f"{len(results.read_bytes().splitlines())} of {len(names)} checks done"

            status, output = run(command, seconds=exercise.seconds, folder=folder, on_tick=show(count))
        rows = [Finding(**json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    if len(rows) < len(names):
        lost = Finding(names[len(rows)], False, _explain_exit(status, output, exercise))
        rows += [lost, *(Finding(name, None) for name in names[len(rows) + 1 :])]
    return Checklist(tuple(rows))


@contextlib.contextmanager
def checking(title: str) -> Iterator[Callable[[Callable[[], str]], Callable[[], None] | None]]:
    """Show a progress line with the elapsed time while an answer is checked.

    Yields:
        A function that takes a callback which describes the progress, and returns one to call every `TICK`;
        None where a line cannot be replaced, as in a log. At the end the line shows the title again.
    """
    start = time.monotonic()
    with progress("kit.check") as line:
        line.update(title)

        def show(describe_progress: Callable[[], str]) -> Callable[[], None] | None:
            def tick() -> None:
                line.update(f"{describe_progress()}, {time.monotonic() - start:.0f} s")

            return tick if line.in_place else None

        yield show
        line.update(title)


def run(
    command: Sequence[str],
    *,
    seconds: float,
    folder: str,
    on_tick: Callable[[], None] | None = None,
    **environment: str,
) -> tuple[int | None, str]:
    """Run a command with a limit of CPU time; kill it and all its children at the end.

    It starts in ``folder``, and its temporary files are there as well, for the caller to remove.

    CPU seconds are counted, so that the load of the machine changes no result; a process that waits is killed
    after `WAITING` times as many seconds of wall time.

    Returns:
        The exit status, None for a process that ran out of time, and the end of its output.
    """
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
    variables |= environment
    log = Path(folder, "log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                limits = math.ceil(seconds), math.ceil(seconds) + 1
                resource.prlimit(process.pid, resource.RLIMIT_CPU, limits)
            status = _wait(process, WAITING * seconds, on_tick)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = None if status == -signal.SIGXCPU else status
    return status, log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _wait(process: subprocess.Popen[bytes], seconds: float, on_tick: Callable[[], None] | None) -> int | None:
    """Wait for a process, calling ``on_tick`` meanwhile; None if it does not end in time."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            return process.wait(min(TICK, left) if on_tick else left)
        except subprocess.TimeoutExpired:
            if on_tick:
                on_tick()
    return None


def _cell_of(answers: Mapping[str, object]) -> tuple[str, dict[str, str]]:
    """Return the source of the cell or file that defines the answers, and the name of each answer in it.

    A lambda gets the name that the exercise has for it.
    """
    cells: dict[str, None] = {}
    named: dict[str, str] = {}
    added = []
    for name, answer in answers.items():
        answer = inspect.unwrap(answer) if callable(answer) else answer
        named[name] = getattr(answer, "__name__", name)
        if not inspect.isfunction(answer) and not inspect.isclass(answer):
            raise NotYet(
                f"{name} is {describe(answer)}: write a function or class, and pass it without calling it"
            )
        if not (cell := _source(answer)):
            raise NotYet(f"{name} has no source code: define it with def or class in a cell")
        cells[cell] = None
        added += _imports(answer, cell)
        if named[name] == "<lambda>":
            named[name] = name
            assert inspect.isfunction(answer), "no class has this name"
            added.append(f"{name} = {_lambda(answer, cell)}")
    if len(cells) > 1:
        raise NotYet(f"write {' and '.join(answers)} in one cell")
    return "\n".join([*cells, *added]), named


def _imports(answer: object, cell: str) -> list[str]:
    """Write the imports of modules that the cell uses and other cells have imported."""
    values = [answer, *vars(answer).values()] if inspect.isclass(answer) else [answer]
    space = next((value.__globals__ for value in values if inspect.isfunction(value)), {})
    names = {node.id for node in ast.walk(definitions(cell)) if isinstance(node, ast.Name)}
    return [
        f"import {space[name].__name__} as {name}"
        for name in sorted(names)
        if inspect.ismodule(space.get(name))
    ]


def _text(answers: Mapping[str, object]) -> tuple[str, dict[str, str]]:
    """Return the same for answers that are strings, which are their own source."""
    for name, answer in answers.items():
        if not isinstance(answer, str):
            raise NotYet(f'{name} is {describe(answer)}, and should be a string: r"…"')
    source = "\n".join(f"{name} = {answer!r}" for name, answer in answers.items())
    return source, {name: name for name in answers}


def _source(answer: types.FunctionType | type) -> str:
    """Return the text of the cell that defines a function or class; empty if it has none."""
    if inspect.isfunction(answer):
        return "".join(linecache.getlines(answer.__code__.co_filename))
    functions = [value for value in vars(answer).values() if inspect.isfunction(value)]
    if functions:
        return _source(functions[0])
    # A class without methods has no file name: take the newest cell that defines it.
    header = re.compile(rf"^class {re.escape(answer.__name__)}\b", re.MULTILINE)
    texts = ("".join(entry[2]) for entry in reversed(list(linecache.cache.values())) if len(entry) == 4)
    return next((text for text in texts if header.search(text)), "")


def _lambda(answer: types.FunctionType, cell: str) -> str:
    """Return the source of a lambda expression of a cell."""
    lambdas = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Lambda)]
    same = [node for node in lambdas if node.lineno == answer.__code__.co_firstlineno] or lambdas
    # Compiled and not evaluated: the code of the lambda is the first constant.
    compiled = {text: compile(text, CELL, "eval").co_consts[0] for text in map(ast.unparse, same)}
    expected = answer.__code__
    for text, code in compiled.items():
        if (code.co_code, code.co_consts) == (expected.co_code, expected.co_consts):
            return text
    return next(iter(compiled))


def _is_stub(stub: str, cell: str) -> bool:
    """Check whether a cell has the stub's definitions, apart from comments and white space."""

    def defined(text: str) -> list[str]:
        try:
            body = definitions(textwrap.dedent(text)).body
        except SyntaxError:
            return [text]
        return [ast.dump(node) for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]

    return defined(stub) == defined(cell)


def _explain_exit(status: int | None, output: str, exercise: Exercise) -> str:
    if status is None:
        return f"it has not finished after {exercise.seconds:g} s of computing: {exercise.timeout_advice}"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    return f"the process exited with status {status}" + (f": {last}" if last else "")


def main(module: str, name: str, source: str, results: str, names: str) -> None:
    """Execute a cell's definitions, run the checks, and append a row for each to a file."""
    exercise: Exercise = getattr(importlib.import_module(module), name)
    cell = Path(source).read_text(encoding="utf-8")
    linecache.cache[CELL] = (len(cell), None, cell.splitlines(keepends=True), CELL)
    learner = sys.modules[LEARNER] = types.ModuleType(LEARNER)
    with Path(results).open("a", encoding="utf-8") as file:
        try:
            exec(compile(definitions(cell), CELL, "exec"), vars(learner))
            answers = {name: getattr(learner, load) for name, load in json.loads(names).items()}
        except Exception as error:  # noqa: BLE001 whatever the learner's code raises
            rows = iter(exercise.fail_first(f"outside the notebook, {explain(error)}"))
        else:
            rows = exercise.rows(answers)
        for row in rows:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
