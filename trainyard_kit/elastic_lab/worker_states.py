"""The states of each worker over time: training, waiting for a rendezvous, hanging, unknown. Pure.

From the worker's own events, and from the disruptions of it or its node: a killed process reports nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kitlib.metrics.events import Event, finite_figure
from trainyard_kit.elastic_lab.disruptions import Disruption
from trainyard_kit.elastic_lab.rendezvous import Rendezvous, WorkerLog

TRAINING, WAITING, HANGING, GONE, UNKNOWN = "training", "waiting", "hanging", "gone", "unknown"
NO_LOG = "?"  # the worker of ranks without a log
AFTER_DISRUPTION = {
    "killed": GONE,
    "pod deleted": GONE,
    "preempted": GONE,
    "evicted": GONE,
    "node stopped": GONE,
    "paused": HANGING,
    "node isolated": HANGING,
    "resumed": WAITING,
    "node reconnected": WAITING,
}
AFTER_EVENT = {"leave": GONE, "end": GONE}
Change = tuple[float, str]


@dataclass(frozen=True)
class WorkerState:
    """A worker's state for a while.

    Attributes:
        kind: ``training``, ``waiting`` for a rendezvous, ``hanging``, or ``unknown``; a worker that is gone
            has none.
        begin: Seconds since 1970.
        end: The same; now, if it lasts.
    """

    kind: str
    begin: float
    end: float


def worker_states(
    logs: Iterable[WorkerLog],
    rendezvous: Sequence[Rendezvous],
    disruptions: Sequence[Disruption],
    *,
    now: float,
) -> tuple[dict[str, tuple[WorkerState, ...]], frozenset[str]]:
    """Derive the states of each worker, and the workers that are paused."""
    changes: dict[str, list[Change]] = {}
    nodes: dict[str, str] = {}
    for log in logs:
        changes.setdefault(log.worker, []).extend(_reported(log.events))
        changes[log.worker] += _left_behind(log, rendezvous)
        nodes[log.worker] = log.node
    paused = set()
    for worker in changes:
        own_disruptions = [
            disruption for disruption in disruptions if _concerns(disruption, worker, nodes[worker])
        ]
        changes[worker] += [
            (disruption.time, AFTER_DISRUPTION[disruption.what])
            for disruption in own_disruptions
            if disruption.what in AFTER_DISRUPTION
        ]
        if (
            own_disruptions
            and own_disruptions[-1].what == "paused"
            and own_disruptions[-1].time >= max(changes[worker])[0]
        ):
            paused.add(worker)
    states = {worker: tuple(_joined(sorted(known), now)) for worker, known in sorted(changes.items())}
    ends = [*(meeting.time for meeting in rendezvous[1:]), now]
    unknown = tuple(
        WorkerState(UNKNOWN, meeting.time, end)
        for meeting, end in zip(rendezvous, ends, strict=False)
        if meeting.world_size > len(meeting.ranks) and end > meeting.time
    )
    if unknown:
        states[NO_LOG] = unknown
    return states, frozenset(paused)


def _concerns(disruption: Disruption, worker: str, node: str) -> bool:
    return disruption.worker == worker or (not disruption.worker and bool(node) and disruption.node == node)


def begin_of(log: WorkerLog) -> float:
    """Find when a worker began to wait for the others."""
    return min(event.time - _waited(event) for event in log.events)


def _waited(event: Event) -> float:
    seconds = event.fields.get("seconds") if event.event == "rendezvous" else 0.0
    return min(max(0.0, finite_figure(seconds) or 0.0), event.time)


def _reported(events: Sequence[Event]) -> list[Change]:
    elastic = any(event.event == "rendezvous" for event in events)
    changes, step = [], 0.0
    for event in events:
        if event.event == "step":
            step = event.time
        elif event.event == "lost":  # it has waited for the others since its last step
            changes.append((step or event.time, WAITING))
        elif event.event == "rendezvous":
            changes += [(event.time - _waited(event), WAITING), (event.time, TRAINING)]
            step = event.time
        elif event.event == "start" and not elastic:
            changes.append((event.time, TRAINING))
        elif event.event in AFTER_EVENT:
            changes.append((event.time, AFTER_EVENT[event.event]))
    return changes


def _left_behind(log: WorkerLog, rendezvous: Sequence[Rendezvous]) -> list[Change]:
    """A worker is gone after its last event, if no later rendezvous has it."""
    last = log.events[-1].time
    later = [meeting for meeting in rendezvous if meeting.time > last]
    return (
        [(last, GONE)] if later and all(log.worker not in meeting.ranks.values() for meeting in later) else []
    )


def _joined(changes: Sequence[Change], now: float) -> Iterable[WorkerState]:
    """Join changes in the order of time into states."""
    kind, begin = GONE, 0.0
    for time, then in [*changes, (now, "")]:
        if then == kind:
            continue
        if kind != GONE and time > begin:
            yield WorkerState(kind, begin, time)
        kind, begin = then, time
