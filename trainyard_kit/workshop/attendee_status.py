"""The status of each attendee: the notebook and cell that they are at, and pods that fail and why. Pure.

It comes from what notebooks report (`progress_reporter`) and from Kubernetes; the live table is in `widget`.
Attendees can write anything into both, so each is parsed separately: for invalid data the table says
that it cannot be read, without effect on other rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kitlib.display.tables import Table, age
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object
from trainyard_kit.workshop import progress_reporter
from trainyard_kit.workshop.progress_reporter import DONE, FAILED, RUNNING, NotebookPosition

COLUMNS = ("attendee", "notebook", "cell", "doing", "finished", "pods", "trouble")
STATE_WORDS = {RUNNING: "runs for", DONE: "idle for", FAILED: "failed, for"}
MAX_TROUBLES = 2  # in a row
LONGEST_ENTRY, LONGEST_TROUBLE, MAX_NOTEBOOKS = 2000, 300, 50  # what a reporter writes is shorter
# Errors of values with another type, form or size than the kit writes.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class AttendeeStatus:
    """The status of one attendee."""

    name: str
    notebooks: tuple[NotebookPosition, ...]
    pods: tuple[Object, ...]
    unreadable: str = ""

    @property
    def finished(self) -> list[str]:
        """Notebooks whose last cell has run."""
        return sorted(notebook.notebook for notebook in self.notebooks if ended(notebook))

    @property
    def troubles(self) -> list[str]:
        """Unreadable data, the error of the last cell, failed pods, and waiting pods."""
        progress = self.notebooks[0] if self.notebooks else None
        cell = [progress.error] if progress and progress.error else []
        failed = [pod for pod in self.pods if pods.phase(pod) == "Failed"]
        waiting = [pod for pod in self.pods if pods.phase(pod) == "Pending" and pods.why(pod)]
        pods_words = (f"{_name(pod)}: {pods.why(pod) or pods.status_word(pod)}" for pod in failed + waiting)
        words = [self.unreadable] * bool(self.unreadable) + cell + list(pods_words)
        return [text[:LONGEST_TROUBLE] for text in words]


def statuses(
    namespaces: Iterable[Object], notebooks: Iterable[Object], all_pods: Iterable[Object], *, label: str
) -> list[AttendeeStatus]:
    """Join namespaces, reported progress and pods to a status for each attendee, sorted by name."""
    namespace_of = {
        namespace["metadata"]["name"]: namespace["metadata"]["labels"][label] for namespace in namespaces
    }
    data = {notebook["metadata"]["namespace"]: notebook.get("data") or {} for notebook in notebooks}
    theirs: dict[str, list[Object]] = {attendee: [] for attendee in namespace_of}
    for pod in all_pods:
        if pod["metadata"]["namespace"] in theirs:
            theirs[pod["metadata"]["namespace"]].append(pod)
    rows = [
        _status(namespace_of[attendee], data.get(attendee, {}), theirs[attendee]) for attendee in namespace_of
    ]
    return sorted(rows, key=lambda status: status.name)


def _status(name: str, data: Mapping[str, str], theirs: Sequence[Object]) -> AttendeeStatus:
    """Read the reports of one attendee's notebooks, and their pods, whatever they contain."""
    notebooks = read(data)
    spoiled = len(data) > len(notebooks)
    message = f"ConfigMap {progress_reporter.CONFIG_MAP}: not all is readable" if spoiled else ""
    status = AttendeeStatus(name, notebooks, tuple(theirs), message)
    try:
        row(status)
    except UNREADABLE as error:
        return AttendeeStatus(name, notebooks, (), f"pods unreadable: {type(error).__name__}")
    return status


def read(data: Mapping[str, str]) -> tuple[NotebookPosition, ...]:
    """Parse a ConfigMap's data, the newest first; entries that are not valid are skipped."""
    positions = []
    for notebook, text in data.items():
        try:
            positions.append(_position(notebook, text))
        except UNREADABLE:
            continue
    return tuple(sorted(positions, key=lambda position: position.at, reverse=True)[:MAX_NOTEBOOKS])


def _position(notebook: str, text: str) -> NotebookPosition:
    """Parse one entry."""
    entry = json.loads(text[: LONGEST_ENTRY + 1])
    cell, of, state = entry.get("cell", 0), entry.get("of", 0), entry.get("state", RUNNING)
    error, at = entry.get("error", ""), entry["at"]
    if (type(cell), type(of), type(error)) != (int, int, str) or not 0 <= cell <= of <= LONGEST_ENTRY:
        raise ValueError(f"{notebook}: no position in a notebook")
    if state not in STATE_WORDS or datetime.fromisoformat(at).tzinfo is None:
        raise ValueError(f"{notebook}: no state, or no time")
    if not progress_reporter.is_of_course(notebook):
        cell = of = 0
    return NotebookPosition(notebook, cell, of, state, error[: progress_reporter.LONGEST], at)


def ended(progress: NotebookPosition) -> bool:
    """Whether the last cell of a notebook has run."""
    return progress.cell == progress.of > 0 and progress.state == DONE


def table(statuses: Iterable[AttendeeStatus], now: datetime | None = None) -> Table:
    """Tabulate attendees in the columns of :data:`COLUMNS`."""
    return Table(COLUMNS, [row(status, now) for status in statuses], empty="no attendees")


def row(status: AttendeeStatus, now: datetime | None = None) -> tuple[object, ...]:
    progress = status.notebooks[0] if status.notebooks else None
    cell = f"{progress.cell} of {progress.of}" if progress and progress.cell else None
    doing = f"{STATE_WORDS[progress.state]} {age(progress.at, now)}" if progress else "not seen yet"
    more = len(status.troubles) - MAX_TROUBLES
    troubles = status.troubles[:MAX_TROUBLES] + ([f"and {more} more"] if more > 0 else [])
    finished = " ".join(notebook.partition("_")[0] for notebook in status.finished)
    return (
        status.name,
        progress.notebook if progress else None,
        cell,
        doing,
        finished,
        counted(status.pods),
        "; ".join(troubles),
    )


def counted(all_pods: Iterable[Object]) -> str:
    """Count the pods in each phase, in words."""
    words = {"Running": "run", "Pending": "wait", "Failed": "failed"}
    phases = [pods.phase(pod) for pod in all_pods]
    return ", ".join(f"{phases.count(name)} {word}" for name, word in words.items() if name in phases)


def _name(pod: Object) -> str:
    run = (pod["metadata"].get("labels") or {}).get(names.RUN)
    rank = pods.node_rank(pod)
    return pod["metadata"]["name"] if run is None or rank is None else f"{run} rank {rank}"
