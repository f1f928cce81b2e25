"""Rehearsal of the notebooks: each runs once on the machine or cluster of the workshop, and is timed.

``tools/run_notebooks.py``, the runner of ``make run``, executes them in a process of its own; this compares
its times with those of the last rehearsal. Reference times are in ``docs/instructors-guide.md``.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.clusters.machine import call
from kitlib.display.tables import Table
from kitlib.errors import BadInput, Interrupted
from kitlib.k8s.quantities import format_bytes

RUNNER = Path("tools", "run_notebooks.py")
RESULT, KEPT = "result.json", "rehearsal.json"
AROUND = "cluster"  # creating and deleting it, and starting kernels
PASSED = "passed"


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        when: In UTC, as ISO 8601.
        place: What it ran on: provider, cores, memory, mode.
        seconds: Of each notebook that was executed, and of the cluster.
        verdicts: Of each notebook: ``passed``, ``failed``, ``not finished`` or ``not executed``.
        before: Seconds of the last rehearsal, if there was one.
    """

    when: str
    place: Mapping[str, object]
    seconds: Mapping[str, float]
    verdicts: Mapping[str, str]
    before: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether every notebook passed."""
        return all(verdict == PASSED for verdict in self.verdicts.values())

    @property
    def whole(self) -> bool:
        """Whether every notebook was executed; only then are the times kept."""
        return "not executed" not in self.verdicts.values()

    @property
    def table(self) -> Table:
        """A row for each notebook, and the sum."""
        names = [*self.verdicts, AROUND]
        rows = [
            (name, _seconds(self.seconds, name), _seconds(self.before, name), self.verdicts.get(name, ""))
            for name in names
        ]
        both = [name for name in names if name in self.seconds and name in self.before]
        earlier = f"{sum(self.before[name] for name in both):.0f}" if both else ""
        verdict = PASSED if self.passed else "NOT READY"
        rows.append(("together", f"{sum(self.seconds.values()):.0f}", earlier, verdict))
        return Table(("notebook", "seconds", "last time", "verdict"), rows)

    def as_dict(self) -> dict[str, object]:
        """Convert to JSON for the file that is kept."""
        return {key: value for key, value in asdict(self).items() if key != "before"}


def rehearse(notebooks: Sequence[str] = (), *, folder: Path, options: Sequence[str] = ()) -> Rehearsal:
    """Run notebooks once; if all were executed, keep their times in ``folder/rehearsal.json``.

    Args:
        notebooks: Numbers or names; by default all.
        folder: Where the report and the times are written.
        options: Of ``tools/run_notebooks.py``, such as ``--provider existing``.

    Raises:
        BadInput: The runner would not begin; it has said why.
        Interrupted: It was stopped; what had been made is deleted.

    Example:
        >>> rehearse(["05"], folder=Path("reports/rehearsal")).table
    """
    runner = config.find(config.DATA / RUNNER)
    before = read(folder / KEPT)
    (folder / RESULT).unlink(missing_ok=True)
    # In one lane, so that notebooks do not slow each other down.
    command = [sys.executable, str(runner), "--output", str(folder), "--lanes", "1", *options, *notebooks]
    status = _run(command)
    if not (folder / RESULT).exists():
        if status == 130:
            raise Interrupted("the rehearsal was interrupted", about=str(folder), fix="start it again")
        raise BadInput(
            f"the notebooks were not run (exit status {status})",
            about=" ".join(notebooks) or "all notebooks",
            fix="the lines above say why",
        )
    outcome = summarize(
        json.loads((folder / RESULT).read_text(encoding="utf-8")), place=_place(options), before=before
    )
    if outcome.whole:
        text = json.dumps(outcome.as_dict(), indent=2, ensure_ascii=False)
        (folder / KEPT).write_text(text + "\n", encoding="utf-8")
    return outcome


def summarize(
    result: Mapping[str, Any], *, place: Mapping[str, object], before: Mapping[str, float]
) -> Rehearsal:
    """Evaluate a ``result.json``. Pure."""
    executed = {
        notebook["name"]: notebook["seconds"] for notebook in result["notebooks"] if notebook["seconds"]
    }
    around = max(0.0, round(result["seconds"] - sum(executed.values()), 1))
    return Rehearsal(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        place=place,
        seconds=executed | {AROUND: around},
        verdicts={notebook["name"]: notebook["verdict"] for notebook in result["notebooks"]},
        before=before,
    )


def read(path: Path) -> dict[str, float]:
    """Read the seconds of an earlier rehearsal by notebook; empty where there was none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _run(command: list[str]) -> int:
    # In this process's group: Ctrl-C reaches the runner as well, which cleans up.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait()


def _place(options: Sequence[str]) -> dict[str, object]:
    doctor = call("doctor")
    return {
        "options": list(options),
        "cores": doctor["cores"],
        "memory": format_bytes(doctor["memory"]),
        "mode": doctor["mode"],
        "system": doctor["system"],
    }


def _seconds(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:.0f}" if name in figures else ""
