"""One evaluation: the test records as tasks, each answer counted once, at parameters that stand still.

It runs beside training: whoever asks for work gets its tasks first. Pure, as the ledger; which parameters
are kept, and for how long, is the master's and the servers' business.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Portion:
    """Test records [start, end) that a worker is to judge."""

    number: int
    start: int
    end: int


class Evaluation:
    """Hand out the test records once, and add up what comes back.

    Args:
        number: Of the evaluation, from 1; the servers keep its parameters under it.
        records: How many test records there are.
        size: Records in a task.
        step: After how many counted minibatches it began.
    """

    def __init__(self, number: int, *, records: int, size: int, step: int) -> None:
        self.number, self.records, self.step = number, records, step
        starts = range(0, records, size)
        self._todo = deque(Portion(i, start, min(start + size, records)) for i, start in enumerate(starts))
        self._doing: dict[int, tuple[Portion, int, float]] = {}
        self._scores: dict[int, tuple[int, int, float]] = {}
        self._tasks = len(starts)

    def next(self, worker: int, now: float, *, patience: float) -> Portion | None:
        """Return what a worker is to judge; after ``patience`` seconds also what another one has."""
        for portion, holder, since in list(self._doing.values()):
            if holder == worker or since < now - patience:
                self._doing[portion.number] = (portion, worker, now)
                return portion
        if not self._todo:
            return None
        portion = self._todo.popleft()
        self._doing[portion.number] = (portion, worker, now)
        return portion

    def report(self, number: int, *, images: int, correct: int, loss: float) -> bool:
        """Add one task's answers; tell whether they are new. The first that come count."""
        if number in self._scores or not 0 <= number < self._tasks:
            return False
        self._doing.pop(number, None)
        self._scores[number] = (images, correct, loss)
        return True

    def lost(self, worker: int) -> None:
        """Return what a lost worker had."""
        for portion, holder, _ in list(self._doing.values()):
            if holder == worker:
                del self._doing[portion.number]
                self._todo.appendleft(portion)

    @property
    def done(self) -> bool:
        """Whether every record has been judged."""
        return len(self._scores) == self._tasks

    def result(self) -> dict[str, float | int]:
        """Return accuracy, mean loss and the number of images."""
        images, correct, loss = (sum(column) for column in zip(*self._scores.values(), strict=True))
        return {
            "accuracy": round(correct / images, 5),
            "loss": round(loss / images, 5),
            "correct": correct,
            "images": images,
        }
