"""One evaluation: test records as tasks, counted once each, at a fixed version of the parameters.

It runs during training, and workers get its tasks first. Like the ledger, the module has no I/O; the master
and the servers decide which parameters are kept and for how long.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Portion:
    """Test records [start, end) for a worker to evaluate."""

    number: int
    start: int
    end: int


class Evaluation:
    """Assign the test records once, and sum the results.

    Args:
        number: Number of the evaluation, from 1; the servers keep its parameters under it.
        records: The number of test records.
        size: Records in a task.
        step: The number of counted minibatches at its start.
    """

    def __init__(self, number: int, *, records: int, size: int, step: int) -> None:
        self.number, self.records, self.step = number, records, step
        starts = range(0, records, size)
        self._todo = deque(Portion(i, start, min(start + size, records)) for i, start in enumerate(starts))
        self._doing: dict[int, tuple[Portion, int, float]] = {}
        self._scores: dict[int, tuple[int, int, float]] = {}
        self._metrics: Counter[str] = Counter()
        self._tasks = len(starts)

    def next(self, worker: int, now: float, *, timeout: float) -> Portion | None:
        """Return a task for a worker; after ``timeout`` seconds also one that another worker has."""
        for portion, holder, since in list(self._doing.values()):
            if holder == worker or since < now - timeout:
                self._doing[portion.number] = (portion, worker, now)
                return portion
        while self._todo:
            portion = self._todo.popleft()
            if portion.number not in self._scores:  # a lost worker's results may still arrive
                self._doing[portion.number] = (portion, worker, now)
                return portion
        return None

    def report(
        self, number: int, *, images: int, correct: int, loss: float, metrics: Mapping[str, float] = NONE
    ) -> bool:
        """Add the results of one task; return True if they are new. The first results count."""
        self._doing.pop(number, None)
        if number in self._scores or not 0 <= number < self._tasks:
            return False
        self._scores[number] = (images, correct, loss)
        self._metrics.update(metrics)
        return True

    def lost(self, worker: int) -> None:
        """Return a lost worker's tasks to the queue."""
        for portion, holder, _ in list(self._doing.values()):
            if holder == worker:
                del self._doing[portion.number]
                self._todo.appendleft(portion)

    @property
    def done(self) -> bool:
        """True if every record has been evaluated."""
        return len(self._scores) == self._tasks

    def result(self) -> dict[str, float | int]:
        """Return accuracy or the user's metrics, the mean loss and the number of images."""
        images, correct, loss = (sum(column) for column in zip(*self._scores.values(), strict=True))
        means = {name: round(total / images, 5) for name, total in self._metrics.items()}
        metrics = means or {"accuracy": round(correct / images, 5), "correct": correct}
        return metrics | {"loss": round(loss / images, 5), "images": images}
