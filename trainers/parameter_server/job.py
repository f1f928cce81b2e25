"""The master's state of a job: the ledger, the evaluation, the servers, and the progress.

Every change is made under one lock, and a restarted master continues from a `snapshot`. A minibatch counts
when a worker reports that every server has acknowledged it, *and* these are the servers' current processes: a
restarted one may lack it (`register` finds out what it lacks, and reopens it).
gRPC, threads and pods are in other modules.
"""

import base64
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .evaluation import Evaluation
from .events import EventLogger
from .protocol_pb2 import EVALUATE, OVER, SAVE, TRAIN, WAIT, Progress, Registration, Task
from .settings import JobSettings
from .tasks import Ledger

SAVE_SECONDS = 30.0  # after which another worker is assigned to write the model file
PERSISTENT = ("evaluations", "evaluated", "saved", "failed", "next_worker")  # attributes
MAX_LOGGED_TASKS = 10_000  # per epoch; a job with more does not log its tasks


@dataclass
class ServerProcess:
    """A server that has registered."""

    address: str
    incarnation: int
    at: float  # time of its last report


@dataclass
class WorkerRecord:
    """A worker: the time of its last report, and its results."""

    at: float
    counted: int = 0
    gone: bool = False


@dataclass
class JobState:
    """The complete state of the master.

    Args:
        settings: The job's settings.
        records: The number of training records.
        test_records: The number of test records.
        log_event: Logs events.
        clock: A monotonic clock, in seconds.
    """

    settings: JobSettings
    records: int
    test_records: int
    log_event: EventLogger
    clock: Callable[[], float] = time.monotonic
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.ledger = Ledger(
            records=self.records,
            minibatch=self.settings.minibatch,
            minibatches_per_task=self.settings.minibatches_per_task,
            epochs=self.settings.epochs,
            seed=self.settings.seed,
        )
        self.servers: list[ServerProcess | None] = [None] * self.settings.servers
        self.workers: dict[int, WorkerRecord] = {}
        self.evaluation: Evaluation | None = None
        self.evaluations = 0  # number of evaluations started
        self.next_evaluation = self.settings.evaluation_steps or None
        self.evaluation_due = False
        self.evaluated = False  # the final model has been evaluated
        self.saved = not self.settings.model_file
        self.failed = ""
        self.failures: dict[str, int] = {}
        self.steps_at: dict[int, int] = {}  # the number of steps when a server was last lost
        self.replaced: set[int] = set()  # incarnations of replaced servers
        self.next_worker = 0
        self.changed = threading.Event()  # wakes the master's loop
        self._saving: tuple[int, float] | None = None
        self._staleness: list[int] = []  # of the pushes since the last `pop_staleness`
        self._logs_tasks = self.ledger.tasks <= MAX_LOGGED_TASKS

    # Requests of workers

    def next_task(self, progress: Progress) -> Task:
        """Process a report, and return the worker's next task."""
        with self.lock:
            self.report(progress)
            worker, now = progress.worker, self.clock()
            if self.over or self.workers[worker].gone:
                return Task(kind=OVER)
            if not self.ready:
                return Task(kind=WAIT)
            evaluation = self.evaluation
            if evaluation is not None and not evaluation.done:
                portion = evaluation.next(worker, now)
                if portion is not None:
                    number, start, end = portion
                    return Task(kind=EVALUATE, id=number, start=start, end=end, pin=evaluation.number)
            assigned = self.ledger.next(worker, now)
            if assigned is not None:
                task = assigned.epoch * self.ledger.tasks + assigned.task
                if self._logs_tasks:
                    self._log_task(task, "doing", worker, assigned.minibatches)
                return Task(kind=TRAIN, id=task, epoch=assigned.epoch, minibatches=assigned.minibatches)
            if self.ledger.over and self.evaluated and not self.saved and self._may_save(worker, now):
                return Task(kind=SAVE, pin=self.evaluations)
            return Task(kind=WAIT)

    def report(self, progress: Progress) -> list[int]:
        """Count a worker's completed minibatches; return the uncounted minibatches of their tasks."""
        with self.lock:
            worker = progress.worker
            record = self.mark_alive(worker)
            left = []
            if progress.minibatches and self._same_servers(progress.incarnations):
                left = self._count(worker, record, progress.epoch, list(progress.minibatches))
            elif progress.minibatches:
                left = self._left(progress.epoch, progress.minibatches)
            self._staleness += progress.staleness
            evaluation = self.evaluation
            for score in progress.scores:
                if evaluation is not None and evaluation.number == score.evaluation:
                    evaluation.report(score, self.clock())
                    if evaluation.done:
                        self.changed.set()
            if progress.pin_lost:
                self.evaluate_again()
            if progress.saved and not self.saved:
                self.saved = True
                self.changed.set()
            if progress.leaving:
                self.lost(worker, "it was stopped")
            return left

    def _count(self, worker: int, record: WorkerRecord, epoch: int, minibatches: list[int]) -> list[int]:
        new, finished = self.ledger.report(epoch, minibatches, self.clock())
        record.counted += new
        if new and self.ledger.complete(epoch):
            self.changed.set()
        for task in finished if self._logs_tasks else ():
            first = task * self.ledger.per_task
            its = range(first, min(first + self.ledger.per_task, self.ledger.minibatches))
            self._log_task(epoch * self.ledger.tasks + task, "done", worker, its)
        steps = self.ledger.steps
        if self.next_evaluation is not None and steps >= self.next_evaluation and self.test_records:
            interval = self.settings.evaluation_steps
            self.next_evaluation = (steps // interval + 1) * interval
            self.evaluation_due = True
        return self._left(epoch, minibatches)

    def _left(self, epoch: int, minibatches: Iterable[int]) -> list[int]:
        tasks = sorted({number // self.ledger.per_task for number in minibatches})
        return [number for task in tasks for number in self.ledger.left(epoch, task)]

    def _may_save(self, worker: int, now: float) -> bool:
        if self._saving is None or now - self._saving[1] > SAVE_SECONDS or self._saving[0] == worker:
            self._saving = (worker, now)
            return True
        return False

    def _log_task(self, task: int, state: str, worker: int, minibatches: Iterable[int]) -> None:
        spans = (self.ledger.records_of(number) for number in minibatches)
        records = sum(end - start for start, end in spans)
        self.log_event("task", id=task, state=state, worker=worker, records=records)

    # Liveness

    def mark_alive(self, worker: int) -> WorkerRecord:
        """Record that a worker is alive."""
        with self.lock:
            record = self.workers.get(worker)
            if record is None:
                record = self.workers[worker] = WorkerRecord(self.clock())
                self.next_worker = max(self.next_worker, worker + 1)
                self.log_world()
            record.at = self.clock()
            return record

    def lost(self, worker: int, why: str) -> None:
        """Return a lost worker's tasks to todo; it gets no more tasks."""
        with self.lock:
            record = self.workers.get(worker)
            if record is None or record.gone:
                return
            record.gone = True
            self._requeue(worker)
            self.changed.set()
            self.log_event("lost", role="worker", worker=worker, reason=why)
            self.log_world()

    def silent(self, seconds: float) -> None:
        """Return the tasks of silent workers to todo; the workers may come back."""
        with self.lock:
            for worker in self.ledger.busy_workers():
                if self.workers[worker].at < self.clock() - seconds:
                    self._requeue(worker)

    def _requeue(self, worker: int) -> None:
        key = self.ledger.lost(worker)
        if self.evaluation is not None:
            self.evaluation.lost(worker)
        if self._saving is not None and self._saving[0] == worker:
            self._saving = None
        if key is not None and self._logs_tasks:
            epoch, task = key
            left = self.ledger.left(epoch, task)
            self._log_task(epoch * self.ledger.tasks + task, "todo", worker, left)

    def log_world(self) -> None:
        """Log the number of workers and servers."""
        workers = sum(not record.gone for record in self.workers.values())
        self.log_event("world", workers=workers, servers=sum(server is not None for server in self.servers))

    # Servers

    @property
    def ready(self) -> bool:
        """True if every server has registered."""
        return all(server is not None for server in self.servers)

    def register(self, registration: Registration) -> None:
        """Register a server; reopen the minibatches that it has not applied."""
        with self.lock:
            before = self.servers[registration.index]
            another = before is not None and before.incarnation != registration.incarnation
            if before is not None and another:
                self.replaced.add(before.incarnation)
            self.servers[registration.index] = ServerProcess(
                registration.address, registration.incarnation, self.clock()
            )
            applied = {epoch.epoch: set(epoch.minibatches) for epoch in registration.applied}
            open_epochs = self.ledger.snapshot()
            again = sum(self.ledger.reopen(epoch, applied.get(epoch, ())) for epoch in open_epochs)
            if registration.restored or again or another:
                self.log_event(
                    "restored", server=registration.index, version=registration.version, again=again
                )
            if another and self.evaluation is not None:
                self.evaluate_again()
            self.log_world()
            self.changed.set()

    def pulse(self, index: int, incarnation: int) -> bool:
        """Record that a server is alive; return True if it is registered."""
        with self.lock:
            known = self.servers[index] if 0 <= index < len(self.servers) else None
            if known is None or known.incarnation != incarnation:
                return False
            known.at = self.clock()
            return True

    def silent_servers(self, seconds: float) -> list[int]:
        """Return the servers that have been silent for too long."""
        with self.lock:
            before = self.clock() - seconds
            return [i for i, server in enumerate(self.servers) if server is not None and server.at < before]

    def forget_server(self, index: int) -> None:
        """Wait for a server's replacement; the old process cannot register again."""
        with self.lock:
            known, self.servers[index] = self.servers[index], None
            if known is not None:
                self.replaced.add(known.incarnation)

    def _same_servers(self, incarnations: Iterable[int]) -> bool:
        known = [server.incarnation for server in self.servers if server is not None]
        return self.ready and known == list(incarnations)

    # Progress

    @property
    def over(self) -> bool:
        """True if the job is complete or has failed."""
        return bool(self.failed) or (self.ledger.over and self.evaluated and self.saved)

    def evaluate_again(self) -> None:
        """Abort the running evaluation and start it again."""
        with self.lock:
            if self.evaluation is not None and not self.evaluation.done:
                self.evaluation = None
                self.evaluation_due = True
            elif self.ledger.over and not self.saved:  # the parameters for the model file are lost
                self.evaluated = False

    def pop_staleness(self) -> dict[str, float] | None:
        """Return the staleness of gradients since the last call; None if there were none."""
        with self.lock:
            staleness, self._staleness = self._staleness, []
        if not staleness:
            return None
        mean = round(sum(staleness) / len(staleness), 3)
        return {"max": max(staleness), "mean": mean, "pushes": len(staleness)}

    def fail(self, kind: str, reason: str, *, most: int) -> bool:
        """Count a failure of a kind; fail the job after more than ``most``; return True if it failed."""
        with self.lock:
            self.failures[kind] = self.failures.get(kind, 0) + 1
            if self.failures[kind] > most and not self.over:
                times = f"{self.failures[kind]} times: " if self.failures[kind] > 1 else ""
                self.failed = f"{times}{reason}"
            return bool(self.failed)

    # Persistent state

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a new master needs."""
        with self.lock:
            return {
                "records": self.records,
                "minibatch": self.settings.minibatch,
                "first_open": self.ledger.first_open,
                "counted": {epoch: _pack(flags) for epoch, flags in self.ledger.snapshot().items()},
            } | {name: getattr(self, name) for name in PERSISTENT}

    def recover(self, state: dict[str, Any]) -> None:
        """Restore the state of another master's `snapshot`.

        Raises:
            ValueError: It belongs to another job.
        """
        if (state["records"], state["minibatch"]) != (self.records, self.settings.minibatch):
            raise ValueError(
                f"it is of a job with {state['records']} records in minibatches of {state['minibatch']}"
            )
        counted = {int(epoch): _unpack(flags) for epoch, flags in state["counted"].items()}
        self.ledger.restore(state["first_open"], counted)
        for name in PERSISTENT:
            setattr(self, name, state[name])
        steps, interval = self.ledger.steps, self.settings.evaluation_steps
        self.next_evaluation = (steps // interval + 1) * interval if interval else None


def _pack(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 1)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
