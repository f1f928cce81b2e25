"""What each worker did when: training, waiting for the others, hanging, gone. Pure.

From a worker's own words, and from what was done to it or to its node, since who is killed says nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kitlib.metrics.disruptions import Disruption
from kitlib.metrics.events import Event
from kitlib.metrics.rendezvous import Rendezvous, WorkerLog

TRAINING, WAITING, HANGING, GONE, UNKNOWN = "training", "waiting", "hanging", "gone", "unknown"
NOBODY = "?"  # whose log is gone
AFTER_ACT = {
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
class Span:
    """What a worker did for a while.

    Attributes:
        kind: ``training``, ``waiting`` for a rendezvous, ``hanging``, or ``unknown``; while it was gone
            there is no span.
        begin: Seconds since 1970.
        end: The same; now, if it still does it.
    """

    kind: str
    begin: float
    end: float


def spans_of(
    logs: Iterable[WorkerLog], rounds: Sequence[Rendezvous], acts: Sequence[Disruption], *, now: float
) -> tuple[dict[str, tuple[Span, ...]], frozenset[str]]:
    """Return the spans of each worker, and which workers hang since somebody stopped them."""
    changes: dict[str, list[Change]] = {}
    nodes: dict[str, str] = {}
    for log in logs:
        changes.setdefault(log.worker, []).extend(_said(log.events))
        changes[log.worker] += _left_behind(log, rounds)
        nodes[log.worker] = log.node
    stopped = set()
    for worker in changes:
        done = [act for act in acts if _touches(act, worker, nodes[worker])]
        changes[worker] += [(act.time, AFTER_ACT[act.what]) for act in done if act.what in AFTER_ACT]
        if done and done[-1].what == "paused" and done[-1].time >= max(changes[worker])[0]:
            stopped.add(worker)
    spans = {worker: tuple(_joined(sorted(known), now)) for worker, known in sorted(changes.items())}
    if unknown := _unknown(rounds, now):
        spans[NOBODY] = tuple(unknown)
    return spans, frozenset(stopped)


def _touches(act: Disruption, worker: str, node: str) -> bool:
    return act.worker == worker or (not act.worker and bool(act.node) and act.node == node)


def begin_of(log: WorkerLog) -> float:
    """Return when a worker began to wait for the others."""
    return min(each.time - _waited(each) for each in log.events)


def _waited(event: Event) -> float:
    """Return how long the rank of a rendezvous had waited for it, in seconds."""
    seconds = event.fields.get("seconds") if event.event == "rendezvous" else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _said(events: Sequence[Event]) -> list[Change]:
    """Return what a worker's own events change."""
    knows = any(each.event == "rendezvous" for each in events)
    changes, step = [], 0.0
    for each in events:
        if each.event == "step":
            step = each.time
        elif each.event == "lost":  # it has waited for the others since its last step
            changes.append((step or each.time, WAITING))
        elif each.event == "rendezvous":
            changes += [(each.time - _waited(each), WAITING), (each.time, TRAINING)]
            step = each.time
        elif each.event == "start" and not knows:
            changes.append((each.time, TRAINING))
        elif each.event in AFTER_EVENT:
            changes.append((each.time, AFTER_EVENT[each.event]))
    return changes


def _left_behind(log: WorkerLog, rounds: Sequence[Rendezvous]) -> list[Change]:
    """Return that a worker has gone, where the others met without it and it has said nothing since."""
    last = log.events[-1].time
    later = [each for each in rounds if each.time > last]
    return [(last, GONE)] if later and all(log.worker not in each.ranks.values() for each in later) else []


def _joined(changes: Sequence[Change], now: float) -> Iterable[Span]:
    """Yield spans from changes in the order of time."""
    kind, begin = GONE, 0.0
    for time, then in [*changes, (now, "")]:
        if then == kind:
            continue
        if kind != GONE and time > begin:
            yield Span(kind, begin, time)
        kind, begin = then, time


def _unknown(rounds: Sequence[Rendezvous], now: float) -> list[Span]:
    """Return when there were ranks of whom nothing is known."""
    ends = [*(each.time for each in rounds[1:]), now]
    holes = [
        (each.time, end) for each, end in zip(rounds, ends, strict=False) if each.world_size > len(each.ranks)
    ]
    return [Span(UNKNOWN, begin, end) for begin, end in holes if end > begin]
