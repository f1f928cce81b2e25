"""The status of each attendee: the notebook and cell that they are at, and pods that fail and why. Pure.

It comes from what notebooks report (`progress_reporter`) and from Kubernetes; the live table is in `widget`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kitlib.display.tables import Table, age
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object
from workshop.progress_reporter import DONE, FAILED, RUNNING, NotebookPosition

COLUMNS = ("attendee", "notebook", "cell", "doing", "finished", "pods", "trouble")
STATE_WORDS = {RUNNING: "runs for", DONE: "idle for", FAILED: "failed, for"}
MOST_TROUBLES = 2  # in a row


@dataclass(frozen=True)
class AttendeeStatus:
    """The status of one attendee.

    Attributes:
        name: Of the attendee.
        notebooks: The progress of their notebooks, the newest first.
        pods: Those of their namespace.
    """

    name: str
    notebooks: tuple[NotebookPosition, ...]
    pods: tuple[Object, ...]

    @property
    def finished(self) -> list[str]:
        """Notebooks of which the last cell has run."""
        return sorted(each.notebook for each in self.notebooks if ended(each))

    @property
    def troubles(self) -> list[str]:
        """The error of the last cell, pods that failed, and pods that wait."""
        progress = self.notebooks[0] if self.notebooks else None
        cell = [progress.error] if progress and progress.error else []
        failed = [each for each in self.pods if pods.phase(each) == "Failed"]
        waiting = [each for each in self.pods if pods.phase(each) == "Pending" and pods.why(each)]
        return [
            *cell,
            *(f"{_name(each)}: {pods.why(each) or pods.status_word(each)}" for each in failed + waiting),
        ]


def statuses(
    namespaces: Iterable[Object], notebooks: Iterable[Object], every: Iterable[Object], *, label: str
) -> list[AttendeeStatus]:
    """Join namespaces, reported progress and pods to a status for each attendee, sorted by name."""
    whose = {each["metadata"]["name"]: each["metadata"]["labels"][label] for each in namespaces}
    data = {each["metadata"]["namespace"]: each.get("data") or {} for each in notebooks}
    theirs: dict[str, list[Object]] = {each: [] for each in whose}
    for pod in every:
        if pod["metadata"]["namespace"] in theirs:
            theirs[pod["metadata"]["namespace"]].append(pod)
    found = [AttendeeStatus(whose[each], read(data.get(each, {})), tuple(theirs[each])) for each in whose]
    return sorted(found, key=lambda status: status.name)


def read(data: Mapping[str, str]) -> tuple[NotebookPosition, ...]:
    """Parse a ConfigMap's data, the newest first; entries that are not valid are skipped."""
    found = []
    for notebook, text in data.items():
        try:
            said = json.loads(text)
            known = {name: said[name] for name in ("cell", "of", "state", "error", "at") if name in said}
            progress = NotebookPosition(notebook, **known)
            datetime.fromisoformat(progress.at)
            if (
                isinstance(progress.cell, int)
                and isinstance(progress.of, int)
                and progress.state in STATE_WORDS
            ):
                found.append(progress)
        except (ValueError, TypeError):
            continue
    return tuple(sorted(found, key=lambda each: each.at, reverse=True))


def ended(progress: NotebookPosition) -> bool:
    """Whether the last cell of a notebook has run."""
    return progress.cell == progress.of > 0 and progress.state == DONE


def table(found: Iterable[AttendeeStatus], now: datetime | None = None) -> Table:
    """A row for each attendee, in the columns of :data:`COLUMNS`."""
    return Table(COLUMNS, [row(each, now) for each in found], empty="no attendees")


def row(status: AttendeeStatus, now: datetime | None = None) -> tuple[object, ...]:
    progress = status.notebooks[0] if status.notebooks else None
    cell = f"{progress.cell} of {progress.of}" if progress and progress.cell else None
    doing = f"{STATE_WORDS[progress.state]} {age(progress.at, now)}" if progress else "not seen yet"
    more = len(status.troubles) - MOST_TROUBLES
    troubles = status.troubles[:MOST_TROUBLES] + ([f"and {more} more"] if more > 0 else [])
    finished = " ".join(each.partition("_")[0] for each in status.finished)
    return (
        status.name,
        progress.notebook if progress else None,
        cell,
        doing,
        finished,
        counted(status.pods),
        "; ".join(troubles),
    )


def counted(every: Iterable[Object]) -> str:
    """Count the pods in each phase, in words."""
    words = {"Running": "run", "Pending": "wait", "Failed": "failed"}
    phases = [pods.phase(each) for each in every]
    return ", ".join(f"{phases.count(each)} {word}" for each, word in words.items() if each in phases)


def _name(pod: Object) -> str:
    run = (pod["metadata"].get("labels") or {}).get(names.RUN)
    rank = pods.node_rank(pod)
    return pod["metadata"]["name"] if run is None or rank is None else f"{run} rank {rank}"
