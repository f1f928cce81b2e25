"""The status of each attendee: current notebook and cell, and failing pods with the reason. Pure.

It is built from what notebooks report (`progress_reporter`) and from Kubernetes; the live table is in
`widget`. Both are untrusted, so each attendee's data is parsed separately: invalid data is shown as
unreadable and does not affect other rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kitlib.display.tables import Table, age
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object
from trainyard_kit.workshop import progress_reporter
from trainyard_kit.workshop.attendees import LABEL
from trainyard_kit.workshop.progress_reporter import DONE, FAILED, RUNNING, NotebookPosition

COLUMNS = ("attendee", "notebook", "cell", "doing", "finished", "pods", "trouble")
STATES = {RUNNING: "running for", DONE: "idle for", FAILED: "failed for"}
MAX_TROUBLES = 2  # shown in a row
LONGEST_ENTRY, LONGEST_TROUBLE, MAX_NOTEBOOKS = 2000, 300, 50  # a reporter's entries are shorter
# Errors that untrusted data can cause.
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
        """Unreadable data, the error of the last cell, failed pods, and Pending pods with a reason."""
        progress = self.notebooks[0] if self.notebooks else None
        cell = [progress.error] if progress and progress.error else []
        failed = [pod for pod in self.pods if pods.phase(pod) == "Failed"]
        pending = [pod for pod in self.pods if pods.phase(pod) == "Pending" and pods.why(pod)]
        reasons = (f"{_name(pod)}: {pods.why(pod) or pods.status_word(pod)}" for pod in failed + pending)
        troubles = [*([self.unreadable] if self.unreadable else []), *cell, *reasons]
        return [trouble[:LONGEST_TROUBLE] for trouble in troubles]


def statuses(
    namespaces: Iterable[Object], notebooks: Iterable[Object], all_pods: Iterable[Object]
) -> list[AttendeeStatus]:
    """Join namespaces, reported progress and pods to attendees' statuses, sorted by name."""
    metas = [namespace["metadata"] for namespace in namespaces]
    attendee_of = {meta["name"]: meta["labels"][LABEL] for meta in metas}
    data = {notebook["metadata"]["namespace"]: notebook.get("data") or {} for notebook in notebooks}
    pods_in: dict[str, list[Object]] = {namespace: [] for namespace in attendee_of}
    for pod in all_pods:
        if pod["metadata"]["namespace"] in pods_in:
            pods_in[pod["metadata"]["namespace"]].append(pod)
    rows = [
        _status(name, data.get(namespace, {}), pods_in[namespace]) for namespace, name in attendee_of.items()
    ]
    return sorted(rows, key=lambda status: status.name)


def _status(name: str, data: Mapping[str, str], own_pods: Sequence[Object]) -> AttendeeStatus:
    """Build the status of one attendee; unreadable data is reported in it."""
    notebooks = read(data)
    invalid = len(data) > len(notebooks)
    message = f"ConfigMap {progress_reporter.CONFIG_MAP}: not all is readable" if invalid else ""
    status = AttendeeStatus(name, notebooks, tuple(own_pods), message)
    try:
        row(status)
    except UNREADABLE as error:
        return AttendeeStatus(name, notebooks, (), f"pods unreadable: {type(error).__name__}")
    return status


def read(data: Mapping[str, str]) -> tuple[NotebookPosition, ...]:
    """Parse a ConfigMap's data, the newest entry first; invalid entries are skipped."""
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
        raise ValueError(f"{notebook}: not a position in a notebook")
    if state not in STATES or datetime.fromisoformat(at).tzinfo is None:
        raise ValueError(f"{notebook}: invalid state or time")
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
    doing = f"{STATES[progress.state]} {age(progress.at, now)}" if progress else "not reported"
    more = len(status.troubles) - MAX_TROUBLES
    troubles = status.troubles[:MAX_TROUBLES] + ([f"and {more} more"] if more > 0 else [])
    finished = " ".join(notebook.partition("_")[0] for notebook in status.finished)
    notebook = progress.notebook if progress else None
    return status.name, notebook, cell, doing, finished, phase_counts(status.pods), "; ".join(troubles)


def phase_counts(all_pods: Iterable[Object]) -> str:
    """Count the pods that are Running, Pending and Failed: ``2 running, 1 pending``."""
    phases = [pods.phase(pod) for pod in all_pods]
    shown = [phase for phase in ("Running", "Pending", "Failed") if phase in phases]
    return ", ".join(f"{phases.count(phase)} {phase.lower()}" for phase in shown)


def _name(pod: Object) -> str:
    run = (pod["metadata"].get("labels") or {}).get(names.RUN)
    rank = pods.node_rank(pod)
    return pod["metadata"]["name"] if run is None or rank is None else f"{run} rank {rank}"
