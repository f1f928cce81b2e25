"""A learner's code in a process of its own: it may loop for ever, exit or crash, and the notebook goes on.

The process gets the cell in which the function or class was written, executes what the cell defines, and
makes the checks. It appends a line of JSON to a file for each result, so the check in which it was lost is
known.

    python -m exercises.apart MODULE CELL RESULTS NAMES
"""

import contextlib
import importlib
import inspect
import json
import linecache
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from trainyard_kit.exercises.checklist import (
    CELL,
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


def judge(exercise: Exercise, written: Mapping[str, object]) -> Checklist:
    """Make an exercise's checks of functions and classes in a new process."""
    names = [check.name for check in exercise.checks]
    try:
        cell = _cell_of(written)
    except NotYet as reason:
        first = Finding(names[0], False, str(reason))
        return Checklist((first, *(Finding(name, None) for name in names[1:])))
    module = exercise.checks[0].function.__module__
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder:
        source, results = Path(folder, "cell.py"), Path(folder, "results")
        source.write_text(cell, encoding="utf-8")
        results.touch()
        by_name = json.dumps({name: each.__name__ for name, each in written.items()})
        command = [
            sys.executable,
            "-m",
            "trainyard_kit.exercises.apart",
            module,
            str(source),
            str(results),
            by_name,
        ]
        ended, said = run(command, seconds=exercise.seconds, folder=folder)
        rows = [Finding(**json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    if len(rows) < len(names):
        lost = Finding(names[len(rows)], False, _why(ended, said, exercise.seconds))
        rows += [lost, *(Finding(name, None) for name in names[len(rows) + 1 :])]
    return Checklist(tuple(rows))


def run(command: Sequence[str], *, seconds: float, folder: str, **environment: str) -> tuple[int | None, str]:
    """Run a command that may compute for some seconds; kill it and all its children at the end.

    What it computes is counted in CPU seconds, so that a busy machine makes nobody's answer wrong; a process
    that waits is killed after `WAITING` times as long.

    Returns:
        The exit status, None for a process that was not finished, and the end of what it wrote.
    """
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
    log = Path(folder, "log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=given, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                limits = math.ceil(seconds), math.ceil(seconds) + 1
                resource.prlimit(process.pid, resource.RLIMIT_CPU, limits)
            ended = process.wait(WAITING * seconds)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ended = None if ended == -signal.SIGXCPU else ended
    return ended, log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _cell_of(written: Mapping[str, object]) -> str:
    """Return the source of the cell, or file, in which the functions and classes were written.

    Raises:
        NotYet: One is neither a function nor a class, or it was not written in a cell.
    """
    cells = set()
    for name, each in written.items():
        if not inspect.isfunction(each) and not inspect.isclass(each):
            raise NotYet(
                f"{name} is {describe(each)}: write a function or a class, and pass it without calling it"
            )
        functions = (
            [one for one in vars(each).values() if inspect.isfunction(one)]
            if inspect.isclass(each)
            else [each]
        )
        lines = linecache.getlines(functions[0].__code__.co_filename) if functions else []
        if not lines or each.__name__ == "<lambda>":
            raise NotYet(f"{name} has no source to be read: write it with def or class in a cell")
        cells.add("".join(lines))
    if len(cells) > 1:
        raise NotYet(f"write {' and '.join(written)} in one cell")
    return cells.pop()


def _why(ended: int | None, said: str, seconds: float) -> str:
    if ended is None:
        return f"it is not finished after {seconds:g} s of computing: look for a loop that does not end"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    return (
        f"the process ended with status {ended}: {last}" if last else f"the process ended with status {ended}"
    )


def main(module: str, source: str, results: str, names: str) -> None:
    """Execute what a cell defines, make the checks, and write a row for each."""
    exercise: Exercise = importlib.import_module(module).EXERCISE
    cell = Path(source).read_text(encoding="utf-8")
    linecache.cache[CELL] = (len(cell), None, cell.splitlines(keepends=True), CELL)
    learner = sys.modules[LEARNER] = types.ModuleType(LEARNER)
    with Path(results).open("a", encoding="utf-8") as file:
        try:
            exec(compile(definitions(cell), CELL, "exec"), vars(learner))
            written = {name: getattr(learner, found) for name, found in json.loads(names).items()}
        except Exception as error:  # noqa: BLE001 whatever the learner's code raises
            first, *others = (check.name for check in exercise.checks)
            rows = [
                Finding(first, False, f"outside of the notebook {explain(error)}"),
                *(Finding(each, None) for each in others),
            ]
        else:
            rows = exercise.rows(written)
        for row in rows:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
