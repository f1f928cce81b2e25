"""One evaluation: test records as tasks, counted once each, at a fixed version of the parameters.

It runs during training, and workers get its tasks first. Like the ledger, which assigns them, the module has
no I/O; the master and the servers decide which parameters are kept and for how long.
"""

from collections import Counter

from .protocol_pb2 import Score
from .tasks import Ledger


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
        self._ledger = Ledger(records=records, minibatch=size, minibatches_per_task=1, epochs=1)
        self._images, self._correct, self._loss = 0, 0, 0.0
        self._metrics: Counter[str] = Counter()

    def next(self, worker: int, now: float) -> tuple[int, int, int] | None:
        """Return a task for a worker, as its number and its records [start, end); None if there is none.

        It may be one that is slow on another worker.
        """
        assigned = self._ledger.next(worker, now)
        return None if assigned is None else (assigned.task, *self._ledger.records_of(assigned.task))

    def report(self, score: Score, now: float) -> bool:
        """Add the results of one task; return True if they are new. The first results count."""
        new, _ = self._ledger.report(0, [score.task], now)
        if new:
            self._images += score.images
            self._correct += score.correct
            self._loss += score.loss
            self._metrics.update(score.metrics)
        return bool(new)

    def lost(self, worker: int) -> None:
        """Return a lost worker's task to the queue."""
        self._ledger.lost(worker)

    @property
    def done(self) -> bool:
        """True if every record has been evaluated."""
        return self._ledger.complete(0)

    def result(self) -> dict[str, float | int]:
        """Return accuracy or the user's metrics, the mean loss and the number of images."""
        images, correct = self._images, self._correct
        means = {name: round(total / images, 5) for name, total in self._metrics.items()}
        metrics = means or {"accuracy": round(correct / images, 5), "correct": correct}
        return metrics | {"loss": round(self._loss / images, 5), "images": images}
