"""Rehearsal of the notebooks: each is run once on the machine or cluster of the workshop, and timed.

``tools/run_notebooks.py``, the runner of ``make run``, executes them in another process; its times are
compared with those of the last rehearsal. Reference times are in the first cell of each notebook.
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
RESULT_FILE, TIMES_FILE = "result.json", "rehearsal.json"
OVERHEAD = "cluster"  # creating and deleting it, and starting kernels
PASSED = "passed"


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        when: Time in UTC, as ISO 8601.
        place: The machine or cluster: options, cores, memory, mode.
        seconds: Duration of each executed notebook, and of the cluster.
        verdicts: Of each notebook: ``passed``, ``failed``, ``not finished`` or ``not executed``.
        before: Durations of the last rehearsal, if any.
    """

    when: str
    place: Mapping[str, object]
    seconds: Mapping[str, float]
    verdicts: Mapping[str, str]
    before: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether all notebooks passed."""
        return all(verdict == PASSED for verdict in self.verdicts.values())

    @property
    def complete(self) -> bool:
        """Whether all notebooks were executed; only then are the times saved."""
        return "not executed" not in self.verdicts.values()

    @property
    def table(self) -> Table:
        """A row for each notebook, and the total."""
        names = [*self.verdicts, OVERHEAD]
        rows = [
            (name, _seconds(self.seconds, name), _seconds(self.before, name), self.verdicts.get(name, ""))
            for name in names
        ]
        both = [name for name in names if name in self.seconds and name in self.before]
        earlier = f"{sum(self.before[name] for name in both):.0f}" if both else ""
        verdict = PASSED if self.passed else "NOT READY"
        rows.append(("total", f"{sum(self.seconds.values()):.0f}", earlier, verdict))
        return Table(("notebook", "seconds", "last time", "verdict"), rows)

    def as_dict(self) -> dict[str, object]:
        """Convert to JSON for `TIMES_FILE`."""
        return {key: value for key, value in asdict(self).items() if key != "before"}


def rehearse(notebooks: Sequence[str] = (), *, folder: Path, options: Sequence[str] = ()) -> Rehearsal:
    """Run notebooks once; if all were executed, save their times in ``folder/rehearsal.json``.

    Args:
        notebooks: Numbers or names; by default all.
        folder: For the report and the times.
        options: Of ``tools/run_notebooks.py``, such as ``--provider existing``.

    Raises:
        BadInput: The runner did not start; it has printed the reason.
        Interrupted: It was interrupted; what it had created is deleted.

    Example:
        >>> rehearse(["05"], folder=Path("reports/rehearsal")).table
    """
    runner = config.find(config.DATA / RUNNER)
    before = read(folder / TIMES_FILE)
    (folder / RESULT_FILE).unlink(missing_ok=True)
    # One lane, so that notebooks do not slow each other down.
    command = [sys.executable, str(runner), "--output", str(folder), "--lanes", "1", *options, *notebooks]
    status = _run(command)
    if not (folder / RESULT_FILE).exists():
        if status == 130:
            raise Interrupted("the rehearsal was interrupted", about=str(folder), fix="start it again")
        raise BadInput(
            f"the notebooks were not run (exit status {status})",
            about=" ".join(notebooks) or "all notebooks",
            fix="see the lines above",
        )
    result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    rehearsal = summarize(result, place=_place(options), before=before)
    if rehearsal.complete:
        text = json.dumps(rehearsal.as_dict(), indent=2, ensure_ascii=False)
        (folder / TIMES_FILE).write_text(text + "\n", encoding="utf-8")
    return rehearsal


def summarize(
    result: Mapping[str, Any], *, place: Mapping[str, object], before: Mapping[str, float]
) -> Rehearsal:
    """Evaluate a ``result.json``. Pure."""
    notebooks = result["notebooks"]
    seconds = {notebook["name"]: notebook["seconds"] for notebook in notebooks if notebook["seconds"]}
    overhead = max(0.0, round(result["seconds"] - sum(seconds.values()), 1))
    return Rehearsal(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        place=place,
        seconds=seconds | {OVERHEAD: overhead},
        verdicts={notebook["name"]: notebook["verdict"] for notebook in notebooks},
        before=before,
    )


def read(path: Path) -> dict[str, float]:
    """Read the durations of an earlier rehearsal by notebook; empty if there is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _run(command: list[str]) -> int:
    # In the same process group, so that Ctrl-C also interrupts the runner, which cleans up.
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


def _seconds(seconds: Mapping[str, float], name: str) -> str:
    return f"{seconds[name]:.0f}" if name in seconds else ""
