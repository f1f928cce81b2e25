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
    paused = set()
    for log in logs:
        worker = log.worker
        own_disruptions = [disruption for disruption in disruptions if _concerns(disruption, log)]
        caused = [
            (disruption.time, AFTER_DISRUPTION[disruption.what])
            for disruption in own_disruptions
            if disruption.what in AFTER_DISRUPTION
        ]
        reported = [change for change in _reported(log.events) if not _is_hanging(change, caused=caused)]
        changes.setdefault(worker, []).extend([*reported, *_left_behind(log, rendezvous, caused), *caused])
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


def _concerns(disruption: Disruption, log: WorkerLog) -> bool:
    on_node = bool(log.node) and disruption.node == log.node
    return disruption.worker == log.worker or (not disruption.worker and on_node)


def _is_hanging(change: Change, *, caused: Sequence[Change]) -> bool:
    """Tell whether it seems to wait while it hangs: its last step may be reported after its pause."""
    time, kind = change
    return (
        kind == WAITING and next((what for begin, what in reversed(caused) if begin <= time), "") == HANGING
    )


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


def _left_behind(log: WorkerLog, rendezvous: Sequence[Rendezvous], caused: Sequence[Change]) -> list[Change]:
    """A worker is gone when it is stopped after its last event, or then, if no later rendezvous has it."""
    last = log.events[-1].time
    later = [meeting for meeting in rendezvous if meeting.time > last]
    if not later or any(log.worker in meeting.ranks.values() for meeting in later):
        return []
    return [] if any(last <= time <= later[0].time for time, _ in caused) else [(last, GONE)]


def _joined(changes: Sequence[Change], now: float) -> Iterable[WorkerState]:
    """Join changes in the order of time into states."""
    kind, begin = GONE, 0.0
    for time, then in [*changes, (now, "")]:
        if then == kind:
            continue
        if kind != GONE and time > begin:
            yield WorkerState(kind, begin, time)
        kind, begin = then, time
