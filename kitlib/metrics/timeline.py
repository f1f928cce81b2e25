"""A run as a line of time: who came and went, and what that cost. Pure: events in, rows out.

The workers' own JSON lines tell the rounds of the rendezvous and the steps (`rounds`), Events of Kubernetes
what was done to them (`acts`); here both become one table. Its picture is in `widgets`. The clocks of pods
are taken to agree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

from kitlib.display.tables import Table
from kitlib.metrics.disruptions import Disruption
from kitlib.metrics.rendezvous import Rendezvous, Step, WorkerLog, count, rounds_of
from kitlib.metrics.worker_states import Span, begin_of, spans_of

SHARE_SECONDS = 10.0  # what is done within so short a time may have one round as its answer
# Which acts can have been the reason of a round, by what its ranks gave as reason; others explain it less.
_GONE = ("killed", "pod deleted", "preempted", "evicted", "node stopped", "node isolated", "scaled", "paused")
CAUSES = {
    "peer lost": _GONE,
    "peer silent": ("paused", "node isolated", "node stopped", "killed", "pod deleted", "evicted"),
    "leave": ("scaled", "preempted", "evicted", "pod deleted"),
    "join": ("scaled", "resumed", "node reconnected", "node started", "killed", "pod deleted"),
}
_LOST = ("killed", "paused", "pod deleted", "preempted", "evicted")
WITHOUT_ACT = {
    "start": "started again",
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
        worker: To whom, if it was one.
        rank: The worker's at that time.
        node: Where.
        round: The rendezvous that followed; None while there has been none.
        before: The world size before it.
        after: The world size of that rendezvous.
        reason: What the ranks gave as reason for it.
        state: Where model and progress came from.
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
    """What became of a run, change by change; a table where it is shown.

    Attributes:
        name: The run's.
        rows: The changes, in the order of time.
        rounds: The rounds of the rendezvous.
        steps: All steps, repeated ones as often as they were done, in the order of time.
        spans: What each worker did when; a worker whose log is gone has a gap.
        gaps: What is not known, and why, in words.
        began: When the first worker said something, in seconds since 1970.
        now: When this was looked at, or the run ended.
        nodes: Where each worker is, or was last.
        paused: Workers that hang, since somebody stopped them.
    """

    name: str
    rows: tuple[Row, ...] = ()
    rounds: tuple[Rendezvous, ...] = ()
    steps: tuple[Step, ...] = ()
    spans: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    began: float = 0.0
    now: float = 0.0
    nodes: dict[str, str] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    COLUMNS: ClassVar = ("at", "what", "worker", "rank", "node", "round", "world size", "state from")
    FIGURES: ClassVar = ("steps lost", "repeated", "next step after s")

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The world size of each round, in their order."""
        return tuple(each.world_size for each in self.rounds)

    @property
    def world_size(self) -> int:
        """The newest round's, 0 before the first."""
        return self.rounds[-1].world_size if self.rounds else 0

    @property
    def ranks(self) -> dict[int, str]:
        """The worker of each rank of the newest round."""
        return dict(sorted(self.rounds[-1].ranks.items())) if self.rounds else {}

    @property
    def step(self) -> int:
        """The last step that was done, 0 before the first."""
        return self.steps[-1].number if self.steps else 0

    @property
    def training(self) -> bool:
        """Whether the newest round has done a step."""
        return bool(self.rounds and self.rounds[-1].steps)

    @property
    def settled(self) -> bool:
        """Whether all that was done to those who train has had its answer: a round, and a step in it."""
        return self.training and not any(row.round is None and self._concerns(row) for row in self.rows)

    def _concerns(self, row: Row) -> bool:
        """Return whether a change that no round has answered should have one."""
        there = set(self.ranks.values())
        if row.time < self.rounds[-1].time and not row.what.startswith("scaled"):
            return False
        if row.what in _LOST:
            return row.worker in there
        if row.what in ("node stopped", "node isolated"):
            return any(self.nodes.get(worker) == row.node for worker in there)
        if row.what.startswith("scaled"):
            last = max(each.time for each in self.rows if each.what.startswith("scaled"))
            return row.time == last and not row.what.endswith(f" {self.world_size}")
        return row.what == "resumed" and row.worker not in there

    @property
    def words(self) -> str:
        """How it is, in a few words."""
        if not self.rounds:
            return "no rendezvous yet"
        newest = self.rounds[-1]
        return f"world size {newest.world_size} in round {newest.number}, step {self.step}"

    @property
    def steps_lost(self) -> int:
        """How many steps were reached by somebody and not carried on, in all."""
        return sum(each.steps_lost for each in self.rounds)

    @property
    def steps_repeated(self) -> int:
        """How many steps were done once more, in all."""
        return sum(each.steps_repeated for each in self.rounds)

    @property
    def samples(self) -> dict[int, int]:
        """How many samples each epoch has counted in the steps that were told, a repeated step once."""
        last = {each.number: each for each in self.steps}
        counted: dict[int, int] = {}
        for each in last.values():
            if each.epoch is not None:
                counted[each.epoch] = counted.get(each.epoch, 0) + each.samples
        return dict(sorted(counted.items()))

    def frame(self):
        """Return the rows as a pandas DataFrame, its columns those of :class:`Row`."""
        import pandas  # half a second, and seldom needed

        names = [each.name for each in fields(Row)]
        return pandas.DataFrame([[getattr(row, name) for name in names] for row in self.rows], columns=names)

    def table(self) -> Table:
        """Return the rows for people: times from the beginning, world sizes as ``2 → 1``."""
        shown = [self._shown(row) for row in self.rows]
        return Table((*self.COLUMNS, *self.FIGURES), shown, empty="nobody has said anything yet")

    def _shown(self, row: Row) -> list[object]:
        sizes = str(row.before)
        if row.round is not None or (self.rounds and self._concerns(row)):
            sizes += f" → {'?' if row.after is None else row.after}"
        number = "" if row.round is None else str(row.round)
        rank = "" if row.rank is None else str(row.rank)
        figures = ["" if each is None else str(each) for each in (row.steps_lost, row.steps_repeated)]
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        known = [f"+{row.time - self.began:.1f} s", row.what, row.worker, rank, row.node, number, sizes]
        return [*known, row.state, *figures, seconds]

    def __repr__(self) -> str:
        return "\n".join([repr(self.table()), *self.gaps])

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + "".join(f"<p><em>{each}</em></p>" for each in self.gaps)


def build(name: str, logs: Iterable[WorkerLog], acts: Iterable[Disruption], *, now: float) -> Timeline:
    """Return the timeline of a run.

    Args:
        name: The run's.
        logs: Of all workers that ever were, as far as they can be had.
        acts: What was done to them; what was done before they began was done to another run of the name.
        now: When the logs were read, or the run ended: seconds since 1970.

    Example:
        >>> build("lab", logs, acts, now=time.time()).world_sizes
        (2, 1, 2)
    """
    logs = [each for each in logs if each.events]
    began = min((begin_of(each) for each in logs), default=now)
    acts = sorted((each for each in acts if each.time >= began), key=lambda act: act.time)
    rounds = rounds_of(logs)
    steps = count(rounds)
    spans, paused = spans_of(logs, rounds, acts, now=now)
    return Timeline(
        name=name,
        rows=tuple(_rows(rounds, acts, began)),
        rounds=tuple(rounds),
        steps=steps,
        spans=spans,
        gaps=tuple(_gaps(rounds)),
        began=began,
        now=now,
        nodes={each.worker: each.node for each in logs},
        paused=paused,
    )


def _rows(rounds: Sequence[Rendezvous], acts: Sequence[Disruption], began: float) -> list[Row]:
    """Return a row for each act, and for each round that none explains, in the order of time."""
    rows, waiting, before = [], list(acts), None
    for each in rounds:
        causes = _causes(each, before, [act for act in waiting if act.time <= each.time]) if before else []
        rows += [_row_of_act(act, each, before, first=act is causes[0]) for act in causes]
        if not causes:
            rows.append(_row_of_round(each, before, began))
        waiting = [act for act in waiting if act not in causes]
        before = each
    rows += [_row_of_act(act, None, _at(rounds, act.time), first=False) for act in waiting]
    return sorted(rows, key=lambda row: row.time)


def _causes(found: Rendezvous, before: Rendezvous, acts: Sequence[Disruption]) -> list[Disruption]:
    """Return the acts whose answer this round is: the newest that fits, and those just before it."""
    known = CAUSES.get(found.reason)
    fits = [act for act in acts if known is None or act.what.startswith(known)]
    fits = [act for act in fits if _could_matter(act, before)]
    return [act for act in fits if act.time >= fits[-1].time - SHARE_SECONDS]


def _could_matter(act: Disruption, before: Rendezvous) -> bool:
    """Return whether an act met somebody who trained: Kubernetes evicts a node's pods long after it went."""
    if act.what not in _LOST or len(before.ranks) < before.world_size:  # of some there is no log
        return True
    return act.worker in before.ranks.values()


def _row_of_act(act: Disruption, found: Rendezvous | None, before: Rendezvous | None, *, first: bool) -> Row:
    there = {worker: rank for rank, worker in before.ranks.items()} if before else {}
    return Row(
        time=act.time,
        what=act.what,
        worker=act.worker,
        rank=there.get(act.worker),
        node=act.node,
        before=before.world_size if before else 0,
        **_figures(found, act.time, first=first),
    )


def _row_of_round(found: Rendezvous, before: Rendezvous | None, began: float) -> Row:
    """Return the row of a round that nobody's act explains: its ranks know the reason."""
    if before is None:
        return Row(began, "start", **_figures(found, began, first=True))
    came, went = found.processes - before.processes, before.processes - found.processes
    changed, ranks = (came, found.ranks) if found.reason == "join" else (went, before.ranks)
    names = sorted({worker for worker, _ in changed})
    of_rank = {worker: rank for rank, worker in ranks.items()}
    time = max((step.time for step in before.steps.values()), default=before.time)
    return Row(
        time=min(time, found.time),
        what=WITHOUT_ACT.get(found.reason, found.reason),
        worker=", ".join(names),
        rank=of_rank.get(names[0]) if len(names) == 1 else None,
        before=before.world_size,
        **_figures(found, time, first=True),
    )


def _figures(found: Rendezvous | None, since: float, *, first: bool) -> dict[str, object]:
    """Return what a round says in a row; nothing if there has been none."""
    if found is None:
        return {}
    step = found.first_step
    return {
        "round": found.number,
        "after": found.world_size,
        "reason": found.reason,
        "state": found.state,
        "steps_lost": found.steps_lost if first else None,
        "steps_repeated": found.steps_repeated if first else None,
        "seconds": step.time - since if step else None,
    }


def _at(rounds: Iterable[Rendezvous], time: float) -> Rendezvous | None:
    """Return the round that was the newest at that time."""
    return max((each for each in rounds if each.time <= time), key=lambda each: each.time, default=None)


def _gaps(rounds: Iterable[Rendezvous]) -> Iterable[str]:
    for each in rounds:
        missing = each.world_size - len(each.ranks)
        if missing > 0:
            yield (
                f"round {each.number}: of {missing} of its {each.world_size} ranks there is no log; "
                "the pod was deleted before it was read"
            )
