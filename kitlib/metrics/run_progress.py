"""How far a run has come, from the events of its ranks: what one bar shows. Pure.

The slowest rank counts, since the others wait for it; the loss is the mean over the ranks, images a second
are their sum. Workers of a parameter server do not wait for each other: their steps are added up. Where no
event has a total there is none. Curves are in `widgets.training`, the words for one event in `log_format`.
"""

from dataclasses import dataclass

from kitlib.metrics.events import Event
from kitlib.metrics.log_format import number


@dataclass
class _Rank:
    """What one rank has reported last."""

    step: int | None = None
    epoch: int = 0  # how many are complete
    loss: float | None = None
    rate: float | None = None


class RunProgress:
    """What is known of the progress of one run; add its events as they come.

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
        """Take in one event; one without usable figures changes nothing."""
        kind, fields, role = event.event, event.fields, _role(event)
        self._world_size = event.world_size
        if steps := kind in ("start", "step", "end") and _count(fields.get("steps")):
            self._totals["steps"] = steps
        if epochs := _count(fields.get("epochs")):
            self._totals["epochs"] = epochs
        if kind == "progress":
            self._percent = _figure(fields.get("percent"))
        elif kind in ("step", "epoch") or (kind == "end" and steps and role is None):
            _update(self._ranks.setdefault((role, event.rank), _Rank()), event)

    @property
    def position(self) -> tuple[float, float | None, str]:
        """How much is done, of how much if anybody said so, and the unit: ``steps``, ``epochs`` or ``%``."""
        ranks = self._taking_part()
        steps = [each.step for each in ranks if each.step is not None]
        if not ranks and self._percent is not None:
            done, total, unit = self._percent, 100, "%"
        elif steps and ("steps" in self._totals or "epochs" not in self._totals):
            done, total, unit = self._over_ranks(steps), self._totals.get("steps"), "steps"
        else:
            done, total = self._over_ranks([each.epoch for each in ranks]), self._totals.get("epochs")
            unit = "epochs" if ranks else "steps"
        return (done if total is None else min(done, total)), total, unit

    @property
    def count(self) -> str:
        """What is done, as in ``140/375 steps``."""
        done, total, unit = self.position
        of = "" if total is None or unit == "%" else f"/{number(total)}"
        return f"{number(done)}{of} {unit}"

    @property
    def figures(self) -> str:
        """Loss and images a second of the whole run, as far as they are known."""
        ranks = self._taking_part()
        losses = [each.loss for each in ranks if each.loss is not None]
        rates = [each.rate for each in ranks if each.rate is not None]
        words = [f"loss {number(sum(losses) / len(losses))}"] if losses else []
        return "  ".join(words + ([f"{number(sum(rates))} images/s"] if rates else []))

    def _taking_part(self) -> list[_Rank]:
        """Return those that count: a rank beyond the world size has left an elastic run."""
        within = max(1, self._world_size)
        return [each for (role, rank), each in self._ranks.items() if role is not None or rank < within]

    def _over_ranks(self, counts: list[int]) -> int:
        roles = any(role is not None for role, _ in self._ranks)
        return sum(counts) if roles else min(counts, default=0)


def _role(event: Event) -> str | None:
    return role if isinstance(role := event.fields.get("role"), str) else None


def _update(rank: _Rank, event: Event) -> None:
    fields = event.fields
    step = _count(fields.get("steps" if event.event == "end" else "step"))
    rank.step = rank.step if step is None else step
    if (epoch := _count(fields.get("epoch"))) is not None:
        rank.epoch = epoch + (event.event == "epoch")
    for name, key in (("loss", "loss"), ("rate", "images_per_s")):
        if (value := _figure(fields.get(key))) is not None:
            setattr(rank, name, value)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
