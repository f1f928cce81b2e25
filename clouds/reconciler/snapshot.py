"""The progress of many resources at one moment, as `reconcile` reports it; immutable, so threads share it."""

from dataclasses import dataclass
from enum import StrEnum

from kitlib.display.tables import Table

COLUMNS = ("step", "state", "expected", "took", "what the cloud says")


class Phase(StrEnum):
    """Where a step is."""

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"  # not begun, since something else has failed or somebody stopped it


@dataclass(frozen=True)
class ReconcileStep:
    """One resource on its way.

    Attributes:
        name: The resource's.
        kind: The cloud's word for it.
        phase: Where it is.
        state: The same in words: ``waits for network``, ``being made``, ``ready``.
        words: What the cloud says of it.
        expected: Seconds that it takes as a rule.
        actual: Seconds that it has taken so far, or in all; None before it has begun.
    """

    name: str
    kind: str
    phase: Phase
    state: str
    words: str = ""
    expected: float = 0.0
    actual: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """All steps at one moment.

    Attributes:
        title: What is worked on: ``cluster lab``.
        verb: ``creating`` or ``deleting``.
        steps: In the order in which the resources were given.
        seconds: Since the work began.
        remaining: Seconds that it still takes as a rule, along the longest chain of needs.
        over: Whether nothing happens any more.
    """

    title: str
    verb: str
    steps: tuple[ReconcileStep, ...]
    seconds: float
    remaining: float
    over: bool = False

    def count(self, phase: Phase) -> int:
        """Count the steps in a phase."""
        return sum(each.phase is phase for each in self.steps)

    def __str__(self) -> str:
        """Return it in a line, for where no table can be shown."""
        parts = [f"{self.count(Phase.DONE)} of {len(self.steps)} steps done after {duration(self.seconds)}"]
        if failed := [each.name for each in self.steps if each.phase is Phase.FAILED]:
            parts.append(f"failed: {', '.join(failed)}")
        if running := [each.name for each in self.steps if each.phase is Phase.RUNS]:
            parts.append(f"at work: {', '.join(running)}")
        if not self.over and self.remaining:
            parts.append(f"about {duration(self.remaining)} to go")
        return "; ".join(parts)

    def table(self) -> Table:
        """Return it with a row a step."""
        rows = [
            (
                each.name,
                each.state,
                duration(each.expected),
                None if each.actual is None else duration(each.actual),
                each.words,
            )
            for each in self.steps
        ]
        return Table(COLUMNS, rows, empty="nothing to do")


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``42 s``, ``9 min``, ``1 min 20 s``.

    Example:
        >>> duration(80)
        '1 min 20 s'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
