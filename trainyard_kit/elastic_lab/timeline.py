"""A run's timeline: each change of its workers, with the steps and the time that it cost. Pure.

The rendezvous and steps are from the workers' events, the disruptions from Kubernetes Events. Pods' clocks
are assumed to be synchronised. The plot is in `timeline_plot`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object
from kitlib.metrics import events as metrics
from kitlib.metrics.events import Event
from trainyard_kit.elastic_lab.disruptions import Disruption, disruptions
from trainyard_kit.elastic_lab.rendezvous import Rendezvous, Step, WorkerLog, all_rendezvous, mark_steps
from trainyard_kit.elastic_lab.worker_states import WorkerState, begin_of, worker_states

if TYPE_CHECKING:
    import pandas

SHARE_SECONDS = 10.0  # disruptions within this time may share a rendezvous
# Possible causes of a rendezvous by its reason; other reasons may have any cause.
CAUSES = {
    "peer lost": (
        *("killed", "pod deleted", "preempted", "evicted"),
        *("node stopped", "node isolated", "scaled", "paused"),
    ),
    "peer silent": ("paused", "node isolated", "node stopped", "killed", "pod deleted", "evicted"),
    "leave": ("scaled", "preempted", "evicted", "pod deleted"),
    "join": ("scaled", "resumed", "node reconnected", "node started", "killed", "pod deleted"),
}
_WORKER_DISRUPTIONS = ("killed", "paused", "pod deleted", "preempted", "evicted")
WITHOUT_CAUSE = {
    "start": "restarted",
    "join": "joined",
    "leave": "left",
    "peer lost": "worker lost",
    "peer silent": "worker silent",
}


@dataclass(frozen=True)
class Row:
    """One change of a run.

    Attributes:
        time: Seconds since 1970.
        what: ``start``, ``killed``, ``scaled 2 → 4``, ``node stopped``, ``joined`` …
        worker: The affected worker, if any.
        rank: The worker's rank at that time.
        node: The affected node, if any.
        round: The number of the rendezvous that followed; None before it.
        before: The world size before the change.
        after: The world size of that rendezvous.
        reason: The reason of that rendezvous as the ranks report it.
        state: The source of model and progress.
        steps_lost: Completed steps that the next rendezvous does not continue from; in the first row of a
            rendezvous only.
        steps_repeated: Repeated steps, in the first row only.
        seconds: Until the next step was completed; None before it.
    """

    time: float
    what: str
    worker: str = ""
    rank: int | None = None
    node: str = ""
    round: int | None = None
    before: int = 0
    after: int | None = None
    reason: str = ""
    state: str = ""
    steps_lost: int | None = None
    steps_repeated: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Timeline:
    """The changes of a run; displayed as a table.

    Attributes:
        name: The run's name.
        rows: The changes, by time.
        rendezvous: The rendezvous, by time.
        steps: All executed steps, including repetitions, by time.
        states: Each worker's states; a worker without a log has a gap.
        gaps: Descriptions of missing information.
        began: The time of the first event, in seconds since 1970.
        now: The time of the timeline, or of the run's end.
        nodes: The current or last node of each worker.
        paused: Workers that are paused.
    """

    name: str
    rows: tuple[Row, ...] = ()
    rendezvous: tuple[Rendezvous, ...] = ()
    steps: tuple[Step, ...] = ()
    states: dict[str, tuple[WorkerState, ...]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    began: float = 0.0
    now: float = 0.0
    nodes: dict[str, str] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    COLUMNS: ClassVar = ("at", "what", "worker", "rank", "node", "round", "world size", "state from")
    FIGURES: ClassVar = ("steps lost", "repeated", "next step after s")

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The world size of each rendezvous, by time."""
        return tuple(rdzv.world_size for rdzv in self.rendezvous)

    @property
    def world_size(self) -> int:
        """The world size of the newest rendezvous, 0 before the first."""
        return self.rendezvous[-1].world_size if self.rendezvous else 0

    @property
    def ranks(self) -> dict[int, str]:
        """The worker of each rank of the newest rendezvous."""
        return dict(sorted(self.rendezvous[-1].ranks.items())) if self.rendezvous else {}

    @property
    def step(self) -> int:
        """The last completed step, 0 before the first."""
        return self.steps[-1].number if self.steps else 0

    @property
    def training(self) -> bool:
        """Whether a step has been completed since the newest rendezvous."""
        return bool(self.rendezvous and self.rendezvous[-1].steps)

    @property
    def settled(self) -> bool:
        """Whether a rendezvous and a step have followed each disruption of a current rank."""
        pending = (row for row in self.rows if row.round is None)
        return self.training and not any(map(self._expects_rendezvous, pending))

    def _expects_rendezvous(self, row: Row) -> bool:
        """Whether a rendezvous will follow a change that has none yet."""
        workers = set(self.ranks.values())
        if row.time < self.rendezvous[-1].time and not row.what.startswith("scaled"):
            return False
        if row.what in _WORKER_DISRUPTIONS:
            return row.worker in workers
        if row.what in ("node stopped", "node isolated"):
            return any(self.nodes.get(worker) == row.node for worker in workers)
        if row.what.startswith("scaled"):
            last = max(row.time for row in self.rows if row.what.startswith("scaled"))
            return row.time == last and not row.what.endswith(f" {self.world_size}")
        return row.what == "resumed" and row.worker not in workers

    @property
    def summary(self) -> str:
        """The current state in one line."""
        if not self.rendezvous:
            return "no rendezvous yet"
        newest = self.rendezvous[-1]
        return f"world size {newest.world_size} in round {newest.number}, step {self.step}"

    @property
    def steps_lost(self) -> int:
        """Total of completed steps that were not continued from."""
        return sum(rdzv.steps_lost for rdzv in self.rendezvous)

    @property
    def steps_repeated(self) -> int:
        """Total of repeated steps."""
        return sum(rdzv.steps_repeated for rdzv in self.rendezvous)

    @property
    def samples(self) -> dict[int, int]:
        """Samples of each epoch in the reported steps, a repeated step counted once."""
        last = {step.number: step for step in self.steps}
        samples: dict[int, int] = {}
        for step in last.values():
            if step.epoch is not None:
                samples[step.epoch] = samples.get(step.epoch, 0) + step.samples
        return dict(sorted(samples.items()))

    def frame(self) -> "pandas.DataFrame":
        """Convert the rows to a pandas DataFrame with the fields of :class:`Row` as columns."""
        import pandas  # takes half a second, and is seldom needed

        names = [column.name for column in fields(Row)]
        return pandas.DataFrame([[getattr(row, name) for name in names] for row in self.rows], columns=names)

    def table(self) -> Table:
        """Tabulate the rows: times since the beginning, world sizes as ``2 → 1``."""
        rows = [self._format(row) for row in self.rows]
        return Table((*self.COLUMNS, *self.FIGURES), rows, empty="no worker has reported anything yet")

    def _format(self, row: Row) -> list[object]:
        sizes = str(row.before)
        if row.round is not None or (self.rendezvous and self._expects_rendezvous(row)):
            sizes += f" → {'?' if row.after is None else row.after}"
        rank, number, lost, repeated = (
            "" if figure is None else str(figure)
            for figure in (row.rank, row.round, row.steps_lost, row.steps_repeated)
        )
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        cells = [f"+{row.time - self.began:.1f} s", row.what, row.worker, rank, row.node, number, sizes]
        return [*cells, row.state, lost, repeated, seconds]

    def __repr__(self) -> str:
        return "\n".join([repr(self.table()), *self.gaps])

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + "".join(f"<p><em>{escape(gap)}</em></p>" for gap in self.gaps)


class RunHistory:
    """The events of a run's workers until now, from which timelines are built.

    A worker's key is its pod's name, which its replacement has too; the earlier events are kept.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: dict[str, list[Event]] = {}
        self.nodes: dict[str, str] = {}

    def add_worker(self, worker: str, node: str) -> None:
        """Register a worker and its node."""
        self.events.setdefault(worker, [])
        self.nodes[worker] = node or self.nodes.get(worker, "")

    def add_lines(self, worker: str, node: str, lines: Iterable[str]) -> None:
        """Add the events among a worker's lines."""
        self.add_worker(worker, node)
        self.events[worker] += metrics.parse(lines)

    def timeline(self, events: Iterable[Object], *, now: float, store: Iterable[str] = ()) -> Timeline:
        """Build the timeline until now."""
        all_disruptions = disruptions(events, run=self.name, workers=self.nodes, store=set(store))
        logs = [
            WorkerLog(worker, self.nodes[worker], tuple(sorted(worker_events, key=lambda event: event.time)))
            for worker, worker_events in sorted(self.events.items())
        ]
        return build(self.name, logs, all_disruptions, now=now)


def build(name: str, logs: Iterable[WorkerLog], causes: Iterable[Disruption], *, now: float) -> Timeline:
    """Build the timeline of a run; causes before its first event belong to an earlier run of its name."""
    logs = [log for log in logs if log.events]
    began = min((begin_of(log) for log in logs), default=now)
    causes = sorted((cause for cause in causes if cause.time >= began), key=lambda cause: cause.time)
    rendezvous = all_rendezvous(logs)
    steps = mark_steps(rendezvous)
    states, paused = worker_states(logs, rendezvous, causes, now=now)
    return Timeline(
        name=name,
        rows=tuple(_rows(rendezvous, causes, began)),
        rendezvous=tuple(rendezvous),
        steps=steps,
        states=states,
        gaps=tuple(_gaps(rendezvous)),
        began=began,
        now=now,
        nodes={log.worker: log.node for log in logs},
        paused=paused,
    )


def _rows(rendezvous: Sequence[Rendezvous], causes: Sequence[Disruption], began: float) -> list[Row]:
    """Build a row for each disruption, and for each rendezvous without one, by time."""
    rows: list[Row] = []
    remaining, previous = list(causes), None
    for rdzv in rendezvous:
        earlier = [cause for cause in remaining if cause.time <= rdzv.time]
        own: list[Disruption] = _causes(rdzv, previous, earlier) if previous else []
        rows += [_row_of_cause(cause, rdzv, previous, first=cause is own[0]) for cause in own]
        if not own:
            rows.append(_row_without_cause(rdzv, previous, began))
        remaining = [cause for cause in remaining if cause not in own]
        previous = rdzv
    for cause in remaining:
        earlier_rounds = (rdzv for rdzv in rendezvous if rdzv.time <= cause.time)
        newest = max(earlier_rounds, key=lambda rdzv: rdzv.time, default=None)
        rows.append(_row_of_cause(cause, None, newest, first=False))
    return sorted(rows, key=lambda row: row.time)


def _causes(rdzv: Rendezvous, before: Rendezvous, causes: Sequence[Disruption]) -> list[Disruption]:
    """Select the causes of a rendezvous: the newest possible one, and those shortly before it."""
    kinds = CAUSES.get(rdzv.reason)
    possible = [
        cause
        for cause in causes
        if (kinds is None or cause.what.startswith(kinds)) and _affects_rank(cause, before)
    ]
    return [cause for cause in possible if cause.time >= possible[-1].time - SHARE_SECONDS]


def _affects_rank(cause: Disruption, before: Rendezvous) -> bool:
    """Whether the worker had a rank: Kubernetes evicts the pods of a stopped node long afterwards."""
    if cause.what not in _WORKER_DISRUPTIONS or len(before.ranks) < before.world_size:  # logs are missing
        return True
    return cause.worker in before.ranks.values()


def _row_of_cause(
    cause: Disruption, rdzv: Rendezvous | None, before: Rendezvous | None, *, first: bool
) -> Row:
    rank_of = {worker: rank for rank, worker in before.ranks.items()} if before else {}
    return Row(
        time=cause.time,
        what=cause.what,
        worker=cause.worker,
        rank=rank_of.get(cause.worker),
        node=cause.node,
        before=before.world_size if before else 0,
        **_figures(rdzv, cause.time, first=first),
    )


def _row_without_cause(rdzv: Rendezvous, before: Rendezvous | None, began: float) -> Row:
    if before is None:
        return Row(began, "start", **_figures(rdzv, began, first=True))
    joined, left = rdzv.processes - before.processes, before.processes - rdzv.processes
    changed, ranks = (joined, rdzv.ranks) if rdzv.reason == "join" else (left, before.ranks)
    names = sorted({worker for worker, _ in changed})
    rank_of = {worker: rank for rank, worker in ranks.items()}
    time = max((step.time for step in before.steps.values()), default=before.time)
    return Row(
        time=min(time, rdzv.time),
        what=WITHOUT_CAUSE.get(rdzv.reason, rdzv.reason),
        worker=", ".join(names),
        rank=rank_of.get(names[0]) if len(names) == 1 else None,
        before=before.world_size,
        **_figures(rdzv, time, first=True),
    )


def _figures(rdzv: Rendezvous | None, since: float, *, first: bool) -> dict[str, Any]:
    if rdzv is None:
        return {}
    step = rdzv.first_step
    return {
        "round": rdzv.number,
        "after": rdzv.world_size,
        "reason": rdzv.reason,
        "state": rdzv.state,
        "steps_lost": rdzv.steps_lost if first else None,
        "steps_repeated": rdzv.steps_repeated if first else None,
        "seconds": step.time - since if step else None,
    }


def _gaps(rendezvous: Iterable[Rendezvous]) -> Iterable[str]:
    for rdzv in rendezvous:
        missing = rdzv.world_size - len(rdzv.ranks)
        if missing > 0:
            yield (
                f"round {rdzv.number}: {missing} of {rdzv.world_size} ranks have no log; "
                "their pods were deleted before it was read"
            )
