"""The rendezvous of a run, with ranks, processes and steps, from the workers' events. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kitlib.metrics.events import Event, finite_figure, whole_number

SAME_SECONDS = 60.0  # after a lost store, rounds are numbered from 0 again: events this far apart differ


@dataclass(frozen=True)
class WorkerLog:
    """The events of one worker."""

    worker: str
    node: str
    events: Sequence[Event]


@dataclass(frozen=True)
class Step:
    """An optimizer step, as the first rank that completed it reported it."""

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
        number: Its round, as the launcher numbers them.
        time: When it was complete.
        world_size: Number of ranks.
        reason: As the ranks report it: ``start``, ``peer lost``, ``join``, …
        state: The source of model and progress: ``fresh``, ``checkpoint``, ``live rank 0``.
        next_step: The first step after it, if the ranks report it.
        ranks: The worker of each rank that has a log.
        pids: The PID of each rank.
        steps: The steps until the next rendezvous, by number.
        steps_lost: Completed steps that it does not continue from.
        steps_repeated: Steps that were completed before it.
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
    """Collect the rendezvous by time, each with its steps."""
    joins = ((event, log) for log in logs for event in _joins(log.events))
    rounds: list[Rendezvous] = []
    round_of: dict[int, Rendezvous] = {}  # by id of the event
    for event, log in sorted(joins, key=lambda pair: pair[0].time):
        rdzv = next((rdzv for rdzv in reversed(rounds) if _belongs(event, rdzv)), None)
        if rdzv is None:
            rdzv = Rendezvous(whole_number(event.fields.get("round")) or 0, event.time, event.world_size)
            rounds.append(rdzv)
        _join(rdzv, event, log.worker)
        round_of[id(event)] = rdzv
    for log in logs:
        current = None
        for event in log.events:
            current = round_of.get(id(event), current)
            if event.event == "step" and current is not None:
                _add_step(current, event)
    return rounds


def _joins(events: Sequence[Event]) -> list[Event]:
    """Select the ``rendezvous`` events; for a trainer that reports none, its ``start`` events."""
    joins = [event for event in events if event.event == "rendezvous"]
    return joins or [event for event in events if event.event == "start"]


def _belongs(event: Event, rdzv: Rendezvous) -> bool:
    key = (whole_number(event.fields.get("round")) or 0, event.world_size)
    same = key == (rdzv.number, rdzv.world_size)
    return same and event.rank not in rdzv.ranks and event.time - rdzv.time <= SAME_SECONDS


def _join(rdzv: Rendezvous, event: Event, worker: str) -> None:
    fields = event.fields
    rdzv.ranks[event.rank] = worker
    rdzv.pids[event.rank] = whole_number(fields.get("pid")) or 0
    if rdzv.reason in ("", "start"):  # a new process reports "start", the others the actual reason
        rdzv.reason = str(fields.get("reason") or "start")
    if rdzv.next_step is None:
        rdzv.next_step = whole_number(fields.get("step"))
    source, leader = fields.get("source"), whole_number(fields.get("leader"))
    if source and not rdzv.state:
        rdzv.state = f"live rank {leader}" if source == "live" and leader is not None else str(source)


def _add_step(rdzv: Rendezvous, event: Event) -> None:
    number = whole_number(event.fields.get("step"))
    if number is None:
        return
    existing = rdzv.steps.get(number)
    if existing is None or event.time < existing.time:
        epoch, samples = map(whole_number, (event.fields.get("epoch"), event.fields.get("samples")))
        loss = finite_figure(event.fields.get("loss"))
        rdzv.steps[number] = Step(event.time, number, epoch, loss, samples or 0)


def mark_steps(rendezvous: Sequence[Rendezvous]) -> tuple[Step, ...]:
    """Mark repeated steps and count lost ones; return all steps by time."""
    completed: set[int] = set()
    last: int | None = None
    steps: list[Step] = []
    for rdzv in rendezvous:
        rdzv.steps = {
            number: replace(step, repeated=number in completed) for number, step in rdzv.steps.items()
        }
        rdzv.steps_repeated = sum(step.repeated for step in rdzv.steps.values())
        first = min(rdzv.steps, default=None) if rdzv.next_step is None else rdzv.next_step
        if first is not None:
            rdzv.steps_lost = 0 if last is None else max(0, last - first + 1)
            last = max(rdzv.steps, default=first - 1)
        completed |= set(rdzv.steps)
        steps += rdzv.steps.values()
    return tuple(sorted(steps, key=lambda step: (step.time, step.number)))
