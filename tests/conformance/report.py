"""Write ``docs/conformance.md``: results from JUnit files of the last whole runs, and ``reasons.toml``."""

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
REASONS = Path(__file__).with_name("reasons.toml")
BEGIN, END = "<!-- results: written by `make conformance` -->\n", "<!-- end of results -->\n"
UNEXPLAINED = "not yet explained"
PASSED = "passed"


def results(folder: Path) -> dict[str, str]:
    """Read the outcome of each test that ran: ``passed``, or how it ended and its message.

    Args:
        folder: Of the suite's JUnit files.
    """
    outcomes = {}
    for path in sorted(folder.glob("junit*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name, status = case.get("name", ""), case.get("status", "")
            ends = [end for end in case if end.tag in ("failure", "error", "skipped")]
            messages = [end.get("message") or end.text or "" for end in ends]
            left_out = status in ("skipped", "pending") and messages == [status]
            if name.startswith("[It] ") and not left_out:
                outcomes[plain(name)] = PASSED if status == PASSED else f"{status}: {''.join(messages)}"
    return outcomes


def plain(name: str) -> str:
    """Take a test's name without its labels.

    Example:
        >>> plain("[It] [sig-node] Pods should run [NodeConformance] [Conformance]")
        '[sig-node] Pods should run'
    """
    return re.sub(r"\s*\[[A-Z][^\]]*\]", "", name.removeprefix("[It] ")).strip()


def write(folder: Path) -> None:
    """Replace the results in the document.

    Args:
        kept: The folder of reports, which has ``USER/SUITE/parallel`` and ``serial``.
    """
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    runs = {
        (user.name, suite.name): results(suite / "parallel") | results(suite / "serial")
        for user in sorted(folder.iterdir())
        for suite in sorted(user.iterdir())
    }
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))["reason"]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(runs, reasons)}\n{END}{after}", encoding="utf-8")


def table(runs: Mapping[tuple[str, str], Mapping[str, str]], reasons: Sequence[Mapping[str, str]]) -> str:
    """Format counts of each run, and each test that did not pass, with its reason.

    Args:
        runs: By user and suite, the outcomes by test.
        reasons: The first counts whose ``match``, a regular expression, finds a test's name,
            and whose ``user``, if it has one, is the run's.
    """
    rows = {key: outcomes for key, outcomes in runs.items() if outcomes}
    lines = _rows(["Suite", "Cluster of", "Run", "Passed", "Not passed"])
    for (user, suite), outcomes in rows.items():
        passed = sum(how == PASSED for how in outcomes.values())
        lines += _rows([suite, _account(user), len(outcomes), passed, len(outcomes) - passed], head=False)
    lines += ["", *_rows(["Not passed", "Cluster of", "Why"])]
    failures: dict[tuple[str, str], list[str]] = {}
    for (user, _), outcomes in rows.items():
        for name, how in outcomes.items():
            if how != PASSED:
                why = _reason(name, user, reasons)
                users = failures.setdefault((why, name), [])
                users += [] if _account(user) in users else [_account(user)]
    for (why, name), users in sorted(failures.items()):
        lines += _rows([name, ", ".join(users), why], head=False)
    return "\n".join(lines) + "\n"


def _account(user: str) -> str:
    return "root" if user == "root" else "a user"


def _reason(name: str, user: str, reasons: Sequence[Mapping[str, str]]) -> str:
    for reason in reasons:
        if re.search(reason["match"], name) and reason.get("user", _account(user)) == _account(user):
            return reason["why"]
    return UNEXPLAINED


def _rows(cells: Iterable[object], *, head: bool = True) -> list[str]:
    cells = [str(cell).replace("|", "\\|") for cell in cells]
    return [f"| {' | '.join(cells)} |", *([f"|{' --- |' * len(cells)}"] if head else [])]
