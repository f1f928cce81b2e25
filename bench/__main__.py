"""``python -m bench``: measure this kit beside its peers, print a table, keep JSON.

The exit status is 0 even if a limit is missed. It is 1 if a measure failed, and 130 after an interruption;
earlier measurements are kept.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console

from bench import machine, table
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.measures import FELT, MEASURES
from bench.results import Result
from kitlib.errors import Interrupted, KitError
from localkube.errors import LocalClusterError

OUTPUT = Path(__file__).parent / "results" / "latest.json"
ROUNDS, QUICK_ROUNDS = 3, 1
PLAIN_WIDTH = 140  # of a file or a pipe
FAILURES = (MeasureFailed, KitError, LocalClusterError, OSError, psutil.Error, subprocess.SubprocessError)


class Report:
    """The results of a run so far, written after each measure."""

    def __init__(self, output: Path, *, rounds: int, quick: bool) -> None:
        self.results: dict[str, list[Result]] = {}  # by measure
        self.states: dict[str, machine.State] = {}
        self.failures: dict[str, str] = {}
        self._output = output
        self._facts = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.describe().as_dict(),
            "rounds": rounds,
            "quick": quick,
        }

    def write(self, *, complete: bool) -> None:
        facts = self._facts | {
            "complete": complete,
            "machine_before": {name: state.as_dict() for name, state in self.states.items()},
            "not_measured": self.failures,
            "results": [
                {"measure": name} | result.as_dict()
                for name, facts in self.results.items()
                for result in facts
            ],
        }
        self._output.parent.mkdir(parents=True, exist_ok=True)
        aside = self._output.with_suffix(".new")
        aside.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        aside.replace(self._output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested measures and return the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    report = Report(options.output, rounds=rounds, quick=options.quick)
    status = 0
    try:
        with Lab(rounds=rounds, quick=options.quick, report=_progress(console)) as lab:
            for name in MEASURES if options.all else options.only or FELT:
                _run_measure(name, lab, report, console)
    except KeyboardInterrupt:
        console.print("interrupted; the clusters of this run are deleted", style="red")
        status = 130
    report.write(complete=status == 0)
    if report.results or report.failures:
        results = itertools.chain.from_iterable(report.results.values())
        table.draw(list(results), states=report.states, failures=report.failures, console=console)
        console.print(f"Samples: {options.output}", markup=False, soft_wrap=True)
    return status or int(bool(report.failures))


def _run_measure(name: str, lab: Lab, report: Report, console: Console) -> None:
    if not lab.quick:
        machine.wait_until_quiet(lab.report)
    state = report.states[name] = machine.read_state()
    console.print(f"{name} (load average {state.load:g}, {state.busy_percent:g}% busy)", style="bold")
    try:
        report.results[name] = MEASURES[name](lab)
    except Interrupted:
        raise
    except FAILURES as error:
        report.failures[name] = str(error)
        console.print(f"{name}: {error}", style="red", markup=False)
        lab.sweep()
    report.write(complete=False)


def _progress(console: Console) -> Callable[[str], None]:
    start = time.monotonic()

    def report(text: str) -> None:
        console.print(
            f"  {time.monotonic() - start:6.0f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )

    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round of each measure, without figures to publish"
    )
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help=f"default {ROUNDS}")
    parser.add_argument(
        "--only", nargs="+", choices=list(MEASURES), metavar="MEASURE", help=", ".join(MEASURES)
    )
    parser.add_argument("--all", action="store_true", help=f"by default {', '.join(FELT)}")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"default {OUTPUT}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
