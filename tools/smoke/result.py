"""Write the machine-readable results of a run: ``result.json`` and JUnit XML.

``result.schema.json`` is the schema of ``result.json``; an incompatible change increments ``SCHEMA``.
``report.py`` writes the HTML page.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from smoke.notebook_result import NotebookResult
from smoke.stopping import INTERRUPTED, TIME_LIMIT
from smoke.thresholds import Verdict
from smoke.timeline import Timeline

SCHEMA = 1
PASSED, FAILED, MISSED, NO_CLUSTER = "passed", "failed", "threshold missed", "cluster"
EXIT_CODES = {PASSED: 0, FAILED: 1, MISSED: 3, NO_CLUSTER: 4, TIME_LIMIT: 124, INTERRUPTED: 130}


@dataclass
class Outcome:
    """The complete results of a run.

    Attributes:
        run: The run's id.
        began: The start in UTC, as ISO 8601.
        planned: The names of the requested notebooks.
        seconds: The duration, including clean-up.
        timeline: Start and duration of each part.
        setup: Seconds of each part of the preceding setup, if any.
        lanes: The number of parallel notebooks.
        time_limit: In seconds, or None.
        cluster: The result of ``clusters.facts``; None without a cluster.
        error: Why the cluster could not be created or deleted.
        stopped: ``TIME_LIMIT`` or ``INTERRUPTED``, or None.
        notebooks: The results of executed notebooks.
        thresholds: The results of the thresholds.
        bundle: The name of the diagnostic archive.
        briefs: A summary of the cluster for each failed notebook, which is printed at the end.
    """

    run: str
    began: str
    planned: list[str]
    time_limit: float | None = None
    seconds: float = 0.0
    timeline: Timeline = field(default_factory=Timeline)
    setup: dict[str, float] = field(default_factory=dict)
    lanes: int = 1
    cluster: dict[str, Any] | None = None
    error: str | None = None
    stopped: str | None = None
    notebooks: list[NotebookResult] = field(default_factory=list)
    thresholds: list[Verdict] = field(default_factory=list)
    bundle: str | None = None
    briefs: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return one of ``EXIT_CODES``, according to the first failure."""
        if self.stopped:
            return self.stopped
        if any(notebook.verdict == "failed" for notebook in self.notebooks):
            return FAILED
        if self.error:
            return NO_CLUSTER
        if [notebook.name for notebook in self.notebooks if notebook.verdict == "passed"] != self.planned:
            return FAILED
        return PASSED if all(threshold.held for threshold in self.thresholds) else MISSED

    @property
    def exit_code(self) -> int:
        """Return the exit status of the program."""
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict[str, object]:
        """Convert it to the schema of ``result.schema.json``."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "began": self.began,
            "seconds": round(self.seconds, 1),
            "time_limit": self.time_limit,
            "cluster": self.cluster,
            "notebooks": [_notebook(name, self._executed(name)) for name in self.planned],
            "thresholds": [threshold.as_dict() for threshold in self.thresholds],
            "error": self.error,
            "bundle": self.bundle,
            "setup": [{"name": name, "seconds": round(seconds, 1)} for name, seconds in self.setup.items()],
            "lanes": self.lanes,
            "timeline": [span.as_dict() for span in self.timeline.spans],
        }

    def _executed(self, name: str) -> NotebookResult | None:
        return next((notebook for notebook in self.notebooks if notebook.name == name), None)

    def junit(self) -> JUnitXml:
        """Convert it to JUnit XML: a case per notebook and threshold, and one for the cluster."""
        suite = TestSuite("trainyard")
        suite.timestamp = self.began
        for name, value in {"run": self.run, "verdict": self.verdict, **(self.cluster or {})}.items():
            if not isinstance(value, list):
                suite.add_property(name, str(value))
        cases = [self._case(name) for name in self.planned]
        cases += [_threshold_case(threshold) for threshold in self.thresholds]
        cluster = TestCase("made, reached and cleaned up", "cluster")
        if self.error:
            cluster.result = [Error(self.error.splitlines()[0], "cluster")]
            cluster.system_err = self.error
        for case in [*cases, cluster]:
            suite.add_testcase(case)
        suite.update_statistics()
        suite.time = round(self.seconds, 1)
        xml = JUnitXml("trainyard")
        xml.add_testsuite(suite)
        return xml

    def _case(self, name: str) -> TestCase:
        case, executed = TestCase(name, "notebooks"), self._executed(name)
        if executed is None:
            case.result = [Skipped(self.stopped or "not executed")]
            return case
        case.time = round(executed.seconds, 1)
        if executed.failure:
            case.result = [Failure(str(executed.failure), f"cell {executed.failure.cell}")]
        elif executed.verdict != "passed":
            case.result = [Error(self.stopped or executed.verdict, "not finished")]
        return case

    def write(self, folder: Path) -> None:
        """Write ``result.json`` and ``junit.xml``."""
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False, default=str)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
        self.junit().write(str(folder / "junit.xml"), pretty=True)


def _notebook(name: str, executed: NotebookResult | None) -> dict[str, object]:
    """Return the entry of a notebook in ``result.json``."""
    if executed is None:
        empty = {"seconds": 0, "figures": {}, "synthetic": False, "data": {}, "failure": None}
        return {"name": name, "verdict": "not executed"} | empty
    failure = executed.failure and {
        "cell": executed.failure.cell,
        "source": executed.failure.source,
        "error": executed.failure.error,
    }
    return {
        "name": name,
        "verdict": executed.verdict,
        "seconds": round(executed.seconds, 1),
        "figures": dict(executed.figures),
        "synthetic": executed.synthetic,
        "data": dict(executed.data),
        "failure": failure,
    }


def _threshold_case(verdict: Verdict) -> TestCase:
    scope = f" in {verdict.notebook}" if verdict.notebook else ""
    case = TestCase(f"{verdict.figure} is at least {verdict.wanted:g}{scope}", "thresholds")
    if not verdict.held:
        case.result = [Failure(str(verdict), "threshold")]
    return case
