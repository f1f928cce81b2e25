"""The rendezvous of a run, from the workers' events: their ranks, processes and steps. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kitlib.metrics.events import Event, finite_figure, whole_number

SAME_SECONDS = 60.0  # a store that was lost counts rounds from the beginning again: this tells them apart


@dataclass(frozen=True)
class WorkerLog:
    """The events of one worker."""

    worker: str
    node: str
    events: Sequence[Event]


@dataclass(frozen=True)
class Step:
    """One optimizer step, as the first rank to finish it reported it."""

    time: float
    number: int
    epoch: int | None
    loss: float | None
    samples: int
    repeated: bool = False


@dataclass
class Rendezvous:
    """One rendezvous: its ranks, and the steps until the next one.

    Attributes:
        number: Its round, as the launcher counts.
        time: When it was complete.
        world_size: Number of ranks.
        reason: As the ranks report it: ``start``, ``peer lost``, ``join`` …
        state: The source of model and progress: ``fresh``, ``checkpoint``, ``live rank 0``.
        next_step: The first step after it, if the ranks report it.
        ranks: The worker of each rank whose log exists.
        pids: The process of each rank.
        steps: The steps until the next rendezvous, by their number.
        steps_lost: Completed steps that are not carried on.
        steps_repeated: Steps that an earlier rendezvous had completed already.
    """

    number: int
    time: float
    world_size: int
    reason: str = ""
    state: str = ""
    next_step: int | None = None
    ranks: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    steps_lost: int = 0
    steps_repeated: int = 0

    @property
    def first_step(self) -> Step | None:
        """The earliest of its steps."""
        return min(self.steps.values(), key=lambda step: step.time, default=None)

    @property
    def processes(self) -> set[tuple[str, int]]:
        """Worker and PID of each rank."""
        return {(worker, self.pids.get(rank, 0)) for rank, worker in self.ranks.items()}


def all_rendezvous(logs: Iterable[WorkerLog]) -> list[Rendezvous]:
    """Collect the rendezvous in their order, each with its steps."""
    met = ((event, log) for log in logs for event in _joins(log.events))
    meetings: list[Rendezvous] = []
    of_event: dict[int, Rendezvous] = {}
    for event, log in sorted(met, key=lambda pair: pair[0].time):
        known = next((earlier for earlier in reversed(meetings) if _belongs(event, earlier)), None)
        if known is None:
            known = Rendezvous(whole_number(event.fields.get("round")) or 0, event.time, event.world_size)
            meetings.append(known)
        _join(known, event, log.worker)
        of_event[id(event)] = known
    for log in logs:
        current = None
        for event in log.events:
            current = of_event.get(id(event), current)
            if event.event == "step" and current is not None:
                _add_step(current, event)
    return meetings


def _joins(events: Sequence[Event]) -> list[Event]:
    """Select the events of a rendezvous; of a trainer that reports none, those of its starts."""
    joins = [event for event in events if event.event == "rendezvous"]
    return joins or [event for event in events if event.event == "start"]


def _belongs(event: Event, to: Rendezvous) -> bool:
    same = (whole_number(event.fields.get("round")) or 0, event.world_size) == (to.number, to.world_size)
    return same and event.rank not in to.ranks and event.time - to.time <= SAME_SECONDS


def _join(to: Rendezvous, event: Event, worker: str) -> None:
    fields = event.fields
    to.ranks[event.rank] = worker
    to.pids[event.rank] = whole_number(fields.get("pid")) or 0
    if to.reason in ("", "start"):  # a new process knows only that it starts, the others know why
        to.reason = str(fields.get("reason") or "start")
    if to.next_step is None:
        to.next_step = whole_number(fields.get("step"))
    source, leader = fields.get("source"), whole_number(fields.get("leader"))
    if source and not to.state:
        to.state = f"live rank {leader}" if source == "live" and leader is not None else str(source)


def _add_step(to: Rendezvous, event: Event) -> None:
    number, loss = whole_number(event.fields.get("step")), event.fields.get("loss")
    if number is None:
        return
    known = to.steps.get(number)
    if known is None or event.time < known.time:
        epoch, samples = (
            whole_number(event.fields.get("epoch")),
            whole_number(event.fields.get("samples")) or 0,
        )
        to.steps[number] = Step(event.time, number, epoch, finite_figure(loss), samples)


def mark_steps(rendezvous: Sequence[Rendezvous]) -> tuple[Step, ...]:
    """Mark repeated steps and count lost ones; return all in the order of time."""
    done: set[int] = set()
    reached: int | None = None
    steps: list[Step] = []
    for meeting in rendezvous:
        meeting.steps = {
            number: replace(step, repeated=number in done) for number, step in meeting.steps.items()
        }
        meeting.steps_repeated = sum(step.repeated for step in meeting.steps.values())
        first = min(meeting.steps, default=None) if meeting.next_step is None else meeting.next_step
        if first is not None:
            meeting.steps_lost = 0 if reached is None else max(0, reached - first + 1)
            reached = max(meeting.steps, default=first - 1)
        done |= set(meeting.steps)
        steps += meeting.steps.values()
    return tuple(sorted(steps, key=lambda step: (step.time, step.number)))
