"""Who is where in a workshop, and whose pods fail and why: a row for each attendee. Pure.

What is read here was written by notebooks (`presence`) and by Kubernetes; how it is shown, and followed, is
in `widgets.workshop_watch`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kitlib.display.tables import Table, age
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object
from workshop.progress_reporter import DONE, FAILED, RUNNING, Whereabouts

COLUMNS = ("attendee", "notebook", "cell", "doing", "finished", "pods", "trouble")
SAID = {RUNNING: "runs for", DONE: "idle for", FAILED: "failed, for"}
MOST_TROUBLES = 2  # in a row


@dataclass(frozen=True)
class Seat:
    """One attendee, as far as anything is known.

    Attributes:
        name: Theirs.
        places: Where their notebooks are, the newest first; none if none was seen.
        pods: Those of their namespace.
    """

    name: str
    places: tuple[Whereabouts, ...]
    pods: tuple[Object, ...]

    @property
    def finished(self) -> list[str]:
        """The notebooks that came to their last cell."""
        return sorted(each.notebook for each in self.places if ended(each))

    @property
    def troubles(self) -> list[str]:
        """What does not go well: the error of the last cell, pods that failed, pods that wait."""
        place = self.places[0] if self.places else None
        cell = [place.error] if place and place.error else []
        failed = [each for each in self.pods if pods.phase(each) == "Failed"]
        waiting = [each for each in self.pods if pods.phase(each) == "Pending" and pods.why(each)]
        return [*cell, *(f"{_name(each)}: {pods.why(each) or pods.word(each)}" for each in failed + waiting)]


def seats(
    namespaces: Iterable[Object], places: Iterable[Object], every: Iterable[Object], *, label: str
) -> list[Seat]:
    """Return the attendees in the order of their names.

    Args:
        namespaces: With the label by which each tells whose it is.
        places: The ConfigMaps in which notebooks tell where they are.
        every: Pods; those of other namespaces are left out.
        label: The label.
    """
    whose = {each["metadata"]["name"]: each["metadata"]["labels"][label] for each in namespaces}
    told = {each["metadata"]["namespace"]: each.get("data") or {} for each in places}
    theirs: dict[str, list[Object]] = {each: [] for each in whose}
    for pod in every:
        if pod["metadata"]["namespace"] in theirs:
            theirs[pod["metadata"]["namespace"]].append(pod)
    found = [Seat(whose[each], read(told.get(each, {})), tuple(theirs[each])) for each in whose]
    return sorted(found, key=lambda seat: seat.name)


def read(data: Mapping[str, str]) -> tuple[Whereabouts, ...]:
    """Return what a ConfigMap tells, the newest first; what somebody has spoiled is left out."""
    found = []
    for notebook, text in data.items():
        try:
            said = json.loads(text)
            known = {name: said[name] for name in ("cell", "of", "state", "error", "at") if name in said}
            place = Whereabouts(notebook, **known)
            datetime.fromisoformat(place.at)
            if isinstance(place.cell, int) and isinstance(place.of, int) and place.state in SAID:
                found.append(place)
        except (ValueError, TypeError):
            continue
    return tuple(sorted(found, key=lambda each: each.at, reverse=True))


def ended(place: Whereabouts) -> bool:
    """Return whether a notebook came to its last cell."""
    return place.cell == place.of > 0 and place.state == DONE


def table(found: Iterable[Seat], now: datetime | None = None) -> Table:
    """Return a row for each attendee, in the columns of :data:`COLUMNS`."""
    return Table(COLUMNS, [row(each, now) for each in found], empty="no attendees")


def row(seat: Seat, now: datetime | None = None) -> tuple:
    """Return name, notebook, cell, what it does, notebooks finished, pods, and what does not go well."""
    place = seat.places[0] if seat.places else None
    cell = f"{place.cell} of {place.of}" if place and place.cell else None
    doing = f"{SAID[place.state]} {age(place.at, now)}" if place else "not seen yet"
    more = len(seat.troubles) - MOST_TROUBLES
    troubles = seat.troubles[:MOST_TROUBLES] + ([f"and {more} more"] if more > 0 else [])
    finished = " ".join(each.partition("_")[0] for each in seat.finished)
    return (
        seat.name,
        place.notebook if place else None,
        cell,
        doing,
        finished,
        counted(seat.pods),
        "; ".join(troubles),
    )


def counted(every: Iterable[Object]) -> str:
    """Return how many pods are in each phase, in words."""
    words = {"Running": "run", "Pending": "wait", "Failed": "failed"}
    phases = [pods.phase(each) for each in every]
    return ", ".join(f"{phases.count(each)} {word}" for each, word in words.items() if each in phases)


def _name(pod: Object) -> str:
    run = (pod["metadata"].get("labels") or {}).get(names.RUN)
    rank = pods.node_rank(pod)
    return pod["metadata"]["name"] if run is None or rank is None else f"{run} rank {rank}"
