"""The rounds of a run's rendezvous, and the steps done in each, from what the workers wrote. Pure.

What was done to the workers, and what it cost, is in `timeline`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kitlib.metrics.events import Event

ROUND_SECONDS = 60.0  # a store that was lost counts from the beginning again: this tells the rounds apart


@dataclass(frozen=True)
class WorkerLog:
    """What one worker said.

    Attributes:
        worker: Its pod.
        node: Where that is, or was.
        events: In the order in which it wrote them.
    """

    worker: str
    node: str
    events: Sequence[Event]


@dataclass
class Rendezvous:
    """One rendezvous: who met, and where they go on.

    Attributes:
        number: The rendezvous's own.
        time: When it was complete.
        world_size: How many ranks met.
        reason: Why, in the ranks' words: ``start``, ``peer lost``, ``join`` …
        state: Where model and progress come from: ``fresh``, ``checkpoint``, ``live rank 0``.
        next_step: The step with which they go on, if they said it.
        ranks: The worker of each rank whose log is there.
        pids: The process of each rank.
        steps: The steps that were done in it, by their number.
        steps_lost: How many steps somebody had reached are not carried on.
        steps_repeated: How many steps were done before, and again in it.
    """

    number: int
    time: float
    world_size: int
    reason: str = ""
    state: str = ""
    next_step: int | None = None
    ranks: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    steps: dict[int, "Step"] = field(default_factory=dict)
    steps_lost: int = 0
    steps_repeated: int = 0

    @property
    def first_step(self) -> "Step | None":
        """The first step that was done in it."""
        return min(self.steps.values(), key=lambda each: each.time, default=None)

    @property
    def processes(self) -> set[tuple[str, int]]:
        """Which processes met."""
        return {(worker, self.pids.get(rank, 0)) for rank, worker in self.ranks.items()}


@dataclass(frozen=True)
class Step:
    """One optimizer step, as the first rank to finish it told."""

    time: float
    number: int
    epoch: int | None
    loss: float | None
    samples: int
    repeated: bool = False


def rounds_of(logs: Iterable[WorkerLog]) -> list[Rendezvous]:
    """Return the rounds in their order, each with its steps."""
    met = sorted(
        ((event, log) for log in logs for event in _meetings(log.events)), key=lambda each: each[0].time
    )
    rounds: list[Rendezvous] = []
    of_event: dict[int, Rendezvous] = {}
    for event, log in met:
        found = next((each for each in reversed(rounds) if _belongs(event, each)), None)
        if found is None:
            found = Rendezvous(_whole(event.fields.get("round")) or 0, event.time, event.world_size)
            rounds.append(found)
        _join(found, event, log.worker)
        of_event[id(event)] = found
    for log in logs:
        current = None
        for event in log.events:
            current = of_event.get(id(event), current)
            if event.event == "step" and current is not None:
                _take_step(current, event)
    return rounds


def _meetings(events: Sequence[Event]) -> list[Event]:
    """Return the events that tell of a rendezvous; of a trainer that knows none, those of its starts."""
    met = [each for each in events if each.event == "rendezvous"]
    return met or [each for each in events if each.event == "start"]


def _belongs(event: Event, to: Rendezvous) -> bool:
    same = (_whole(event.fields.get("round")) or 0, event.world_size) == (to.number, to.world_size)
    return same and event.rank not in to.ranks and event.time - to.time <= ROUND_SECONDS


def _join(to: Rendezvous, event: Event, worker: str) -> None:
    said = event.fields
    to.ranks[event.rank] = worker
    to.pids[event.rank] = _whole(said.get("pid")) or 0
    if to.reason in ("", "start"):  # the others know why they met again, a new process only that it starts
        to.reason = str(said.get("reason") or "start")
    if to.next_step is None:
        to.next_step = _whole(said.get("step"))
    source, leader = said.get("source"), _whole(said.get("leader"))
    if source and not to.state:
        to.state = f"live rank {leader}" if source == "live" and leader is not None else str(source)


def _take_step(to: Rendezvous, event: Event) -> None:
    number, loss = _whole(event.fields.get("step")), event.fields.get("loss")
    if number is None:
        return
    known = to.steps.get(number)
    if known is None or event.time < known.time:
        epoch, samples = _whole(event.fields.get("epoch")), _whole(event.fields.get("samples")) or 0
        usable = float(loss) if isinstance(loss, int | float) else None
        to.steps[number] = Step(event.time, number, epoch, usable, samples)


def count(rounds: Sequence[Rendezvous]) -> tuple[Step, ...]:
    """Mark the steps that were repeated, and count the lost ones; return all in the order of time."""
    done: set[int] = set()
    reached: int | None = None
    every: list[Step] = []
    for each in rounds:
        marked = {
            number: Step(**vars(step) | {"repeated": number in done}) for number, step in each.steps.items()
        }
        each.steps = marked
        each.steps_repeated = sum(step.repeated for step in marked.values())
        goes_on = min(marked, default=None) if each.next_step is None else each.next_step
        if goes_on is not None:
            each.steps_lost = 0 if reached is None else max(0, reached - goes_on + 1)
            reached = max(marked, default=goes_on - 1)
        done |= set(marked)
        every += marked.values()
    return tuple(sorted(every, key=lambda step: (step.time, step.number)))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
