"""Progress of a run for a progress bar, from the events of its ranks. Pure.

Position is that of the slowest rank, because the others wait for it; the loss is the mean over the ranks,
images a second the sum. Workers of a parameter server do not wait for each other: their steps are summed. The
total is known only if an event has it.
"""

from dataclasses import dataclass

from kitlib.metrics.events import MAX_RANKS, Event, figure, finite_figure
from kitlib.metrics.log_format import number


@dataclass
class _Rank:
    """The last values of one rank."""

    step: int | None = None
    epoch: int = 0  # completed ones
    loss: float | None = None
    rate: float | None = None


class RunProgress:
    """The progress of one run; add its events as they come.

    Example:
        >>> progress = RunProgress()
        >>> progress.add(Event("step", time=1.0, rank=0, world_size=2, fields={"step": 9}))
        >>> progress.count
        '9 steps'
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple[str | None, int], _Rank] = {}  # by role and rank
        self._totals: dict[str, int] = {}
        self._percent: float | None = None
        self._world_size = 0

    def add(self, event: Event) -> None:
        """Add an event; one without valid numbers is ignored."""
        kind, fields, role = event.event, event.fields, event.fields.get("role")
        role = role if isinstance(role, str) else None
        self._world_size = event.world_size
        if steps := kind in ("start", "step", "end") and _count(fields.get("steps")):
            self._totals["steps"] = steps
        if epochs := _count(fields.get("epochs")):
            self._totals["epochs"] = epochs
        if kind == "progress":
            self._percent = finite_figure(fields.get("percent"))
        elif kind in ("step", "epoch") or (kind == "end" and steps and role is None):
            rank = self._ranks.get((role, event.rank))
            if rank is None:
                if len(self._ranks) >= MAX_RANKS:
                    return
                rank = self._ranks[role, event.rank] = _Rank()
            if (step := _count(fields.get("steps" if kind == "end" else "step"))) is not None:
                rank.step = step
            if (epoch := _count(fields.get("epoch"))) is not None:
                rank.epoch = epoch + (kind == "epoch")
            rank.loss = rank.loss if (loss := figure(fields.get("loss"))) is None else loss
            rank.rate = rank.rate if (rate := finite_figure(fields.get("images_per_s"))) is None else rate

    @property
    def position(self) -> tuple[float, float | None, str]:
        """The completed amount, the total if it is known, and the unit: ``steps``, ``epochs`` or ``%``."""
        ranks = self._current_ranks()
        steps = [rank.step for rank in ranks if rank.step is not None]
        done: float
        total: float | None
        if not ranks and self._percent is not None:
            done, total, unit = self._percent, 100, "%"
        elif steps and ("steps" in self._totals or "epochs" not in self._totals):
            done, total, unit = self._over_ranks(steps), self._totals.get("steps"), "steps"
        else:
            done, total = self._over_ranks([rank.epoch for rank in ranks]), self._totals.get("epochs")
            unit = "epochs" if ranks else "steps"
        return (done if total is None else min(done, total)), total, unit

    @property
    def began(self) -> bool:
        """Whether an event has reported progress."""
        return bool(self._ranks) or self._percent is not None

    @property
    def share(self) -> str:
        """The position for progress bars: ``140 of 375 steps``."""
        done, total, unit = self.position
        of = "" if total is None else f" of {number(total)}"
        return f"{number(done)}{of} {unit}"

    @property
    def count(self) -> str:
        """The position in short: ``140/375 steps``."""
        done, total, unit = self.position
        of = "" if total is None or unit == "%" else f"/{number(total)}"
        return f"{number(done)}{of} {unit}"

    @property
    def figures(self) -> str:
        """Loss and images a second of the whole run, if known."""
        ranks = self._current_ranks()
        losses = [rank.loss for rank in ranks if rank.loss is not None]
        rates = [rank.rate for rank in ranks if rank.rate is not None]
        loss = [f"loss {number(sum(losses) / len(losses))}"] if losses else []
        return "  ".join(loss + ([f"{number(sum(rates))} images/s"] if rates else []))

    def _current_ranks(self) -> list[_Rank]:
        """Exclude ranks beyond the world size, which have left an elastic run."""
        size = max(1, self._world_size)
        return [state for (role, rank), state in self._ranks.items() if role is not None or rank < size]

    def _over_ranks(self, counts: list[int]) -> int:
        roles = any(role is not None for role, _ in self._ranks)
        return sum(counts) if roles else min(counts, default=0)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
