"""The states of each worker over time: training, waiting for a rendezvous, hanging, unknown. Pure.

They are derived from the worker's events, and from disruptions of the worker or its node, because a killed
process reports nothing.
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
    """A worker's state during an interval.

    Attributes:
        kind: ``training``, ``waiting`` for a rendezvous, ``hanging``, or ``unknown``; a terminated worker
            has no state.
        begin: Seconds since 1970.
        end: Seconds since 1970; now, if the state lasts.
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
        own = [disruption for disruption in disruptions if _affects(disruption, log)]
        caused = [
            (disruption.time, AFTER_DISRUPTION[disruption.what])
            for disruption in own
            if disruption.what in AFTER_DISRUPTION
        ]
        reported = [change for change in _reported(log.events) if not _is_hanging(change, caused=caused)]
        all_changes = changes.setdefault(log.worker, [])
        all_changes += [*reported, *_replaced(log, rendezvous, caused), *caused]
        if own and own[-1].what == "paused" and own[-1].time >= max(all_changes)[0]:
            paused.add(log.worker)
    states = {worker: tuple(_to_states(sorted(items), now)) for worker, items in sorted(changes.items())}
    ends = [*(rdzv.time for rdzv in rendezvous[1:]), now]
    unknown = tuple(
        WorkerState(UNKNOWN, rdzv.time, end)
        for rdzv, end in zip(rendezvous, ends, strict=False)
        if rdzv.world_size > len(rdzv.ranks) and end > rdzv.time
    )
    if unknown:
        states[NO_LOG] = unknown
    return states, frozenset(paused)


def _affects(disruption: Disruption, log: WorkerLog) -> bool:
    on_node = bool(log.node) and disruption.node == log.node
    return disruption.worker == log.worker or (not disruption.worker and on_node)


def _is_hanging(change: Change, *, caused: Sequence[Change]) -> bool:
    """Whether a worker that seems to wait is hanging: its last step may be reported after its pause."""
    time, kind = change
    state = next((state for begin, state in reversed(caused) if begin <= time), "")
    return kind == WAITING and state == HANGING


def begin_of(log: WorkerLog) -> float:
    """Return when a worker began to wait for the others, in seconds since 1970."""
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
        elif event.event == "lost":  # waiting since its last step
            changes.append((step or event.time, WAITING))
        elif event.event == "rendezvous":
            changes += [(event.time - _waited(event), WAITING), (event.time, TRAINING)]
            step = event.time
        elif event.event == "start" and not elastic:
            changes.append((event.time, TRAINING))
        elif event.event in AFTER_EVENT:
            changes.append((event.time, AFTER_EVENT[event.event]))
    return changes


def _replaced(log: WorkerLog, rendezvous: Sequence[Rendezvous], caused: Sequence[Change]) -> list[Change]:
    """End a worker that no later rendezvous has at its last event, unless a disruption ended it."""
    last = log.events[-1].time
    later = [rdzv for rdzv in rendezvous if rdzv.time > last]
    if not later or any(log.worker in rdzv.ranks.values() for rdzv in later):
        return []
    return [] if any(last <= time <= later[0].time for time, _ in caused) else [(last, GONE)]


def _to_states(changes: Sequence[Change], now: float) -> Iterable[WorkerState]:
    """Convert changes, sorted by time, to states."""
    kind, begin = GONE, 0.0
    for time, next_kind in [*changes, (now, "")]:
        if next_kind == kind:
            continue
        if kind != GONE and time > begin:
            yield WorkerState(kind, begin, time)
        kind, begin = next_kind, time
