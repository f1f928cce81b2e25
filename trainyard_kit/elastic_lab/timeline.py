"""A run's timeline: each change of its workers, and the steps and the time that it cost. Pure.

The workers' events give the rendezvous and the steps, Kubernetes Events the disruptions; both become one
table. The clocks of pods are assumed to agree. Its picture is in `timeline_plot`.
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

SHARE_SECONDS = 10.0  # disruptions within so short a time may share a rendezvous
# The disruptions that may cause a rendezvous with this reason; other reasons may have any cause.
CAUSES = {
    "peer lost": (
        *("killed", "pod deleted", "preempted", "evicted"),
        *("node stopped", "node isolated", "scaled", "paused"),
    ),
    "peer silent": ("paused", "node isolated", "node stopped", "killed", "pod deleted", "evicted"),
    "leave": ("scaled", "preempted", "evicted", "pod deleted"),
    "join": ("scaled", "resumed", "node reconnected", "node started", "killed", "pod deleted"),
}
_OF_WORKERS = ("killed", "paused", "pod deleted", "preempted", "evicted")
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
        worker: The worker, if it concerns one.
        rank: The worker's at that time.
        node: The node, if it concerns one.
        round: The rendezvous that followed; None while there has been none.
        before: The world size before it.
        after: The world size of that rendezvous.
        reason: The reason of that rendezvous as the ranks report it.
        state: The source of model and progress.
        steps_lost: Completed steps that the next rendezvous does not carry on. A rendezvous's figures are in
            its first row only.
        steps_repeated: Steps done once more.
        seconds: Until the next step was done; None while there has been none.
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
    """The changes of a run; a table where it is shown.

    Attributes:
        name: The run's.
        rows: The changes, in the order of time.
        rendezvous: The rendezvous, in their order.
        steps: All steps, repeated ones as often as they were done, in the order of time.
        states: Each worker's states; a worker whose log is gone has a gap.
        gaps: What is not known, and why, in words.
        began: The time of the first event, in seconds since 1970.
        now: The time of the timeline, or of the run's end.
        nodes: The node of each worker, now or last.
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
        """The world size of each rendezvous, in their order."""
        return tuple(meeting.world_size for meeting in self.rendezvous)

    @property
    def world_size(self) -> int:
        """The newest rendezvous's, 0 before the first."""
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
        """Whether a step has been done since the newest rendezvous."""
        return bool(self.rendezvous and self.rendezvous[-1].steps)

    @property
    def settled(self) -> bool:
        """Whether each disruption of a current rank has been followed by a rendezvous, and a step."""
        return self.training and not any(row.round is None and self._concerns(row) for row in self.rows)

    def _concerns(self, row: Row) -> bool:
        """Tell whether a change without a rendezvous yet will be followed by one."""
        workers = set(self.ranks.values())
        if row.time < self.rendezvous[-1].time and not row.what.startswith("scaled"):
            return False
        if row.what in _OF_WORKERS:
            return row.worker in workers
        if row.what in ("node stopped", "node isolated"):
            return any(self.nodes.get(worker) == row.node for worker in workers)
        if row.what.startswith("scaled"):
            last = max(row.time for row in self.rows if row.what.startswith("scaled"))
            return row.time == last and not row.what.endswith(f" {self.world_size}")
        return row.what == "resumed" and row.worker not in workers

    @property
    def summary(self) -> str:
        """The current state, in a few words."""
        if not self.rendezvous:
            return "no rendezvous yet"
        newest = self.rendezvous[-1]
        return f"world size {newest.world_size} in round {newest.number}, step {self.step}"

    @property
    def steps_lost(self) -> int:
        """Completed steps that were not carried on, in all."""
        return sum(meeting.steps_lost for meeting in self.rendezvous)

    @property
    def steps_repeated(self) -> int:
        """Steps done once more, in all."""
        return sum(meeting.steps_repeated for meeting in self.rendezvous)

    @property
    def samples(self) -> dict[int, int]:
        """Samples of each epoch in the reported steps, a repeated step counted once."""
        last = {step.number: step for step in self.steps}
        counted: dict[int, int] = {}
        for step in last.values():
            if step.epoch is not None:
                counted[step.epoch] = counted.get(step.epoch, 0) + step.samples
        return dict(sorted(counted.items()))

    def frame(self) -> "pandas.DataFrame":
        """Make a pandas DataFrame of the rows, its columns those of :class:`Row`."""
        import pandas  # half a second, and seldom needed

        names = [column.name for column in fields(Row)]
        return pandas.DataFrame([[getattr(row, name) for name in names] for row in self.rows], columns=names)

    def table(self) -> Table:
        """Make a table of the rows: times from the beginning, world sizes as ``2 → 1``."""
        shown = [self._shown(row) for row in self.rows]
        return Table((*self.COLUMNS, *self.FIGURES), shown, empty="no worker has reported anything yet")

    def _shown(self, row: Row) -> list[object]:
        sizes = str(row.before)
        if row.round is not None or (self.rendezvous and self._concerns(row)):
            sizes += f" → {'?' if row.after is None else row.after}"
        rank, number, lost, repeated = (
            "" if figure is None else str(figure)
            for figure in (row.rank, row.round, row.steps_lost, row.steps_repeated)
        )
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        known = [f"+{row.time - self.began:.1f} s", row.what, row.worker, rank, row.node, number, sizes]
        return [*known, row.state, lost, repeated, seconds]

    def __repr__(self) -> str:
        return "\n".join([repr(self.table()), *self.gaps])

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + "".join(f"<p><em>{escape(gap)}</em></p>" for gap in self.gaps)


class RunHistory:
    """The events of a run's workers until now, from which a timeline can be built at any time.

    A worker is known by its pod's name, which a replacement keeps; its earlier events are kept.
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
            WorkerLog(worker, self.nodes[worker], tuple(sorted(reported, key=lambda event: event.time)))
            for worker, reported in sorted(self.events.items())
        ]
        return build(self.name, logs, all_disruptions, now=now)


def build(name: str, logs: Iterable[WorkerLog], causes: Iterable[Disruption], *, now: float) -> Timeline:
    """Build the timeline of a run; causes before its first worker belong to an earlier run of the name."""
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
    """Make a row for each disruption, and for each rendezvous that none explains, in the order of time."""
    rows: list[Row] = []
    waiting, before = list(causes), None
    for meeting in rendezvous:
        earlier = [cause for cause in waiting if cause.time <= meeting.time]
        own: list[Disruption] = _causes(meeting, before, earlier) if before else []
        rows += [_row_of_cause(cause, meeting, before, first=cause is own[0]) for cause in own]
        if not own:
            rows.append(_row_without_cause(meeting, before, began))
        waiting = [cause for cause in waiting if cause not in own]
        before = meeting
    for cause in waiting:
        past = (meeting for meeting in rendezvous if meeting.time <= cause.time)
        newest = max(past, key=lambda earlier: earlier.time, default=None)
        rows.append(_row_of_cause(cause, None, newest, first=False))
    return sorted(rows, key=lambda row: row.time)


def _causes(meeting: Rendezvous, before: Rendezvous, causes: Sequence[Disruption]) -> list[Disruption]:
    """Select the causes of a rendezvous: the newest that fits, and those just before it."""
    known = CAUSES.get(meeting.reason)
    fits = [
        cause
        for cause in causes
        if (known is None or cause.what.startswith(known)) and _could_matter(cause, before)
    ]
    return [cause for cause in fits if cause.time >= fits[-1].time - SHARE_SECONDS]


def _could_matter(cause: Disruption, before: Rendezvous) -> bool:
    """Exclude workers without a rank: Kubernetes evicts the pods of a stopped node long afterwards."""
    if cause.what not in _OF_WORKERS or len(before.ranks) < before.world_size:  # some logs are missing
        return True
    return cause.worker in before.ranks.values()


def _row_of_cause(
    cause: Disruption, meeting: Rendezvous | None, before: Rendezvous | None, *, first: bool
) -> Row:
    rank_of = {worker: rank for rank, worker in before.ranks.items()} if before else {}
    return Row(
        time=cause.time,
        what=cause.what,
        worker=cause.worker,
        rank=rank_of.get(cause.worker),
        node=cause.node,
        before=before.world_size if before else 0,
        **_figures(meeting, cause.time, first=first),
    )


def _row_without_cause(meeting: Rendezvous, before: Rendezvous | None, began: float) -> Row:
    if before is None:
        return Row(began, "start", **_figures(meeting, began, first=True))
    came, went = meeting.processes - before.processes, before.processes - meeting.processes
    changed, ranks = (came, meeting.ranks) if meeting.reason == "join" else (went, before.ranks)
    names = sorted({worker for worker, _ in changed})
    of_rank = {worker: rank for rank, worker in ranks.items()}
    time = max((step.time for step in before.steps.values()), default=before.time)
    return Row(
        time=min(time, meeting.time),
        what=WITHOUT_CAUSE.get(meeting.reason, meeting.reason),
        worker=", ".join(names),
        rank=of_rank.get(names[0]) if len(names) == 1 else None,
        before=before.world_size,
        **_figures(meeting, time, first=True),
    )


def _figures(meeting: Rendezvous | None, since: float, *, first: bool) -> dict[str, Any]:
    if meeting is None:
        return {}
    step = meeting.first_step
    return {
        "round": meeting.number,
        "after": meeting.world_size,
        "reason": meeting.reason,
        "state": meeting.state,
        "steps_lost": meeting.steps_lost if first else None,
        "steps_repeated": meeting.steps_repeated if first else None,
        "seconds": step.time - since if step else None,
    }


def _gaps(rendezvous: Iterable[Rendezvous]) -> Iterable[str]:
    for meeting in rendezvous:
        missing = meeting.world_size - len(meeting.ranks)
        if missing > 0:
            yield (
                f"round {meeting.number}: of {missing} of its {meeting.world_size} ranks there is no log; "
                "the pod was deleted before it was read"
            )
