"""The ledger: which records are todo, doing and done.

An epoch's records are divided into minibatches, these into tasks. A task moves from todo to doing to done; a
lost worker's task returns to todo, and a slow task is also assigned to a second worker. The unit of counting
is the minibatch, not the task: each is marked once, so its records count once, whichever worker is first.

Unassigned tasks are numbers in an order, not objects: a million of them take a few megabytes. This module has
no I/O: the time is an argument, and disk and network are in other modules.
"""

import random
from array import array
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

SLOW_FACTOR = 3.0  # a task that takes this multiple of the mean time is assigned a second time
MIN_SLOW_SECONDS = 5.0  # before a task counts as slow
OPEN_EPOCHS = 2  # so that workers neither wait for the slowest nor get far ahead
SMOOTHING = 0.1  # of the mean time, so that it follows a machine that slows down


@dataclass(frozen=True)
class AssignedTask:
    """A task for a worker.

    Attributes:
        epoch: Counted from 0.
        task: The task's number in the epoch.
        minibatches: Numbers in the epoch of the uncounted minibatches, in processing order.
    """

    epoch: int
    task: int
    minibatches: list[int]


@dataclass
class _Epoch:
    """An open epoch: the order of its tasks, and 1 for each counted minibatch."""

    order: "array[int]"
    counted: bytearray
    count: int = 0  # of counted minibatches
    following: int = 0  # position in the order of the first unassigned task
    returned: deque[int] = field(default_factory=deque)


class Ledger:
    """Assign tasks and count records.

    Args:
        records: The number of records.
        minibatch: Records in a minibatch; the last one of an epoch may have fewer.
        minibatches_per_task: The number of minibatches in a task.
        epochs: How often each record is counted; 0 where the model is only evaluated.
        seed: Seed of the order of tasks, which differs in each epoch.

    Raises:
        ValueError: An argument is less than one.

    Example:
        >>> ledger = Ledger(records=10, minibatch=4, minibatches_per_task=2, epochs=1)
        >>> task = ledger.next(worker=0, now=0.0)
        >>> records, tasks = ledger.report(task.epoch, task.minibatches, now=1.0)
        >>> tasks == [task.task]
        True
    """

    def __init__(
        self, *, records: int, minibatch: int, minibatches_per_task: int, epochs: int, seed: int = 0
    ) -> None:
        if min(records, minibatch, minibatches_per_task) < 1 or epochs < 0:
            raise ValueError("records, minibatch and minibatches per task are at least one each")
        self.records, self.minibatch, self.per_task, self.epochs = (
            records,
            minibatch,
            minibatches_per_task,
            epochs,
        )
        self.seed = seed
        self.minibatches = -(-records // minibatch)
        self.tasks = -(-self.minibatches // minibatches_per_task)
        self.first_open = 0  # all epochs before it are closed
        self.mean_seconds = 0.0  # duration of a task
        self._open: dict[int, _Epoch] = {}
        # For each assigned task its worker and the time, the longest running one first.
        self._doing: dict[tuple[int, int], tuple[int, float]] = {}
        self._of_worker: dict[int, tuple[int, int]] = {}

    # Assignment

    def next(self, worker: int, now: float) -> AssignedTask | None:
        """Return a task for a worker; None if there is none at present.

        A worker that still has a task gets the rest of it.
        """
        mine = self._of_worker.get(worker)
        if mine is not None:
            left = self.left(*mine)
            if left:
                return AssignedTask(*mine, left)
            self._drop(worker)
        slow = self._slow(now)
        if slow is not None:
            self._drop(self._doing[slow][0])  # it continues, and what it reports counts
            self._assign(slow, worker, now)
            return AssignedTask(*slow, self.left(*slow)[::-1])  # from the end, so that both meet halfway
        for key in self._waiting():
            left = self.left(*key)
            if left and key not in self._doing:
                self._assign(key, worker, now)
                return AssignedTask(*key, left)
        return None

    def _assign(self, key: tuple[int, int], worker: int, now: float) -> None:
        self._doing[key] = worker, now
        self._of_worker[worker] = key

    def left(self, epoch: int, task: int) -> list[int]:
        """Return the uncounted minibatches of a task, in order."""
        epoch_open = self._open.get(epoch)
        if epoch_open is None:
            return []
        first = task * self.per_task
        last = min(first + self.per_task, self.minibatches)
        return [number for number in range(first, last) if not epoch_open.counted[number]]

    def records_of(self, minibatch: int) -> tuple[int, int]:
        """Return the records of a minibatch, as a range [start, end)."""
        start = minibatch * self.minibatch
        return start, min(start + self.minibatch, self.records)

    def _waiting(self) -> Iterator[tuple[int, int]]:
        """Yield unassigned tasks: returned ones, then new ones; a yielded task counts as taken."""
        for epoch in range(self.first_open, min(self.first_open + OPEN_EPOCHS, self.epochs)):
            epoch_open = self._epoch(epoch)
            while epoch_open.returned:
                yield epoch, epoch_open.returned.popleft()
            while epoch_open.following < self.tasks:
                epoch_open.following += 1
                yield epoch, epoch_open.order[epoch_open.following - 1]

    def _slow(self, now: float) -> tuple[int, int] | None:
        """Return the longest running task, if it is too slow."""
        timeout = max(MIN_SLOW_SECONDS, SLOW_FACTOR * self.mean_seconds)
        for key, (_, since) in self._doing.items():
            if since > now - timeout:
                return None
            if self.left(*key):
                return key
        return None

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._open:
            order = array("q", range(self.tasks))
            random.Random(f"{self.seed} {number}").shuffle(order)
            self._open[number] = _Epoch(order, bytearray(self.minibatches))
        return self._open[number]

    # Counting

    def report(self, epoch: int, minibatches: Iterable[int], now: float) -> tuple[int, list[int]]:
        """Count minibatches that every server has applied.

        Returns:
            The number of newly counted records, and the tasks completed by them.

        Raises:
            ValueError: There is no such minibatch.
        """
        epoch_open = self._open.get(epoch)
        if epoch_open is None and self.first_open <= epoch < self.epochs:
            epoch_open = self._epoch(epoch)  # a restarted master may not know the reported task
        before, touched = self.counted(epoch), set()
        for number in minibatches:
            if not 0 <= number < self.minibatches:
                raise ValueError(f"there is no minibatch {number} in an epoch of {self.minibatches}")
            if epoch_open is not None and not epoch_open.counted[number]:
                epoch_open.counted[number] = 1
                epoch_open.count += 1
                touched.add(number // self.per_task)
        finished = [task for task in touched if not self.left(epoch, task)]
        for task in finished:
            self._finish((epoch, task), now)
        return self.counted(epoch) - before, finished

    def reopen(self, epoch: int, applied: Container[int]) -> int:
        """Reopen the minibatches that a server has not applied; return the number of records.

        Args:
            epoch: An open epoch; nothing is reopened in others.
            applied: The server's minibatches.
        """
        epoch_open = self._open.get(epoch)
        if epoch_open is None:
            return 0
        before, touched = self.counted(epoch), set(epoch_open.returned)
        for number, is_counted in enumerate(epoch_open.counted):
            if is_counted and number not in applied:
                epoch_open.counted[number] = 0
                epoch_open.count -= 1
                touched.add(number // self.per_task)
        epoch_open.returned = deque(sorted(task for task in touched if (epoch, task) not in self._doing))
        return before - self.counted(epoch)

    def counted(self, epoch: int) -> int:
        """Return the number of counted records of an epoch."""
        if epoch < self.first_open:
            return self.records
        if epoch not in self._open:
            return 0
        lacking = self.minibatch * self.minibatches - self.records  # in the last minibatch
        return self._open[epoch].count * self.minibatch - lacking * self._open[epoch].counted[-1]

    def complete(self, epoch: int) -> bool:
        """Return True if every record of an epoch has been counted."""
        return self.counted(epoch) == self.records

    def close(self, epoch: int) -> None:
        """Close an epoch: every server has its updates on disk.

        Raises:
            ValueError: It is incomplete, or not the next one to be closed.
        """
        if epoch != self.first_open or not self.complete(epoch):
            raise ValueError(
                f"epoch {epoch} cannot be closed: {self.counted(epoch)} of {self.records} counted"
            )
        self._open.pop(epoch, None)
        self.first_open += 1

    @property
    def over(self) -> bool:
        """True if all epochs are closed."""
        return self.first_open == self.epochs

    @property
    def steps(self) -> int:
        """The number of counted minibatches, over all epochs."""
        return self.first_open * self.minibatches + sum(epoch.count for epoch in self._open.values())

    # Workers

    def lost(self, worker: int) -> tuple[int, int] | None:
        """Move a lost worker's task to todo and return it; None if it had none."""
        key = self._drop(worker)
        if key is None or not self.left(*key):
            return None
        self._open[key[0]].returned.append(key[1])
        return key

    def busy_workers(self) -> set[int]:
        """Return the workers that have a task."""
        return set(self._of_worker)

    def _drop(self, worker: int) -> tuple[int, int] | None:
        key = self._of_worker.pop(worker, None)
        if key is not None:
            del self._doing[key]
        return key

    def _finish(self, key: tuple[int, int], now: float) -> None:
        if key in self._doing:
            worker, since = self._doing.pop(key)
            del self._of_worker[worker]
            seconds = now - since
            self.mean_seconds += (seconds - self.mean_seconds) * (SMOOTHING if self.mean_seconds else 1)

    # Persistent state

    def snapshot(self) -> dict[int, bytes]:
        """Return a byte for each minibatch of each open epoch, for `restore`: 1 if it is counted."""
        return {number: bytes(epoch.counted) for number, epoch in self._open.items()}

    def restore(self, first_open: int, counted: dict[int, bytes]) -> None:
        """Restore closed epochs and counted minibatches in a new ledger."""
        self.first_open = first_open
        for number, minibatches in counted.items():
            epoch_open = self._epoch(number)
            epoch_open.counted[:] = minibatches
            epoch_open.count = sum(minibatches)
