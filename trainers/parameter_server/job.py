"""What the master knows of a job: the ledger, the evaluation, the servers, and how far it has come.

Every change goes through one lock and is written to the journal, so that a master that is started anew goes
on from it. A minibatch counts when a worker reports that every server has acknowledged it, *and* these are
the servers' processes of today: one that was restarted may lack it (`register` finds out what it lacks, and
takes it back). gRPC, threads and pods are not here.
"""

import base64
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .evaluation import Evaluation
from .events import Teller
from .protocol_pb2 import EVALUATE, OVER, SAVE, TRAIN, WAIT, Progress, Registration, Task
from .settings import Settings
from .tasks import Ledger

WAIT_SECONDS = 0.2
SAVE_SECONDS = 30.0  # after which another worker is asked to write the model file
TOLD_TASKS = 10_000  # in an epoch; a job with more does not tell of each
EVALUATION_PATIENCE = 10.0


@dataclass
class ServerProcess:
    """A server that has registered."""

    address: str
    incarnation: int
    version: int
    at: float  # when it was last heard of


@dataclass
class _Staleness:
    most: int = 0
    total: int = 0
    pushes: int = 0


@dataclass
class WorkerSeen:
    """A worker: when it was last heard of, and what it has brought."""

    at: float
    counted: int = 0
    gone: bool = False


@dataclass
class Job:
    """All state of the master.

    Args:
        settings: What was asked for.
        records: How many there are to train on.
        test_records: How many to evaluate on.
        tell: Says events.
        write: Takes a line for the journal.
        clock: Gives seconds that never go back.
    """

    settings: Settings
    records: int
    test_records: int
    tell: Teller
    write: Callable[[dict], None]
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
        self.workers: dict[int, WorkerSeen] = {}
        self.evaluation: Evaluation | None = None
        self.evaluations = 0  # how many were begun
        self.next_evaluation = self.settings.evaluation_steps or None
        self.wanted = False  # an evaluation is due
        self.judged = False  # the model as it is at the end has been evaluated
        self.saved = not self.settings.model_file
        self.failed = ""
        self.failures: dict[str, int] = {}
        self.steps_at: dict[int, int] = {}  # how far it was when a server was lost last
        self.replaced: set[int] = set()  # incarnations of servers whose place another has taken
        self.next_worker = 0
        self._saving: tuple[int, float] | None = None
        self._staleness = _Staleness()
        self._tells_tasks = self.ledger.tasks <= TOLD_TASKS

    # What workers ask

    def next_task(self, progress: Progress) -> Task:
        """Take a report, and say what the worker is to do next."""
        with self.lock:
            self.report(progress)
            worker, now = progress.worker, self.clock()
            if self.over or self.workers[worker].gone:
                return Task(kind=OVER)
            if not self.ready:
                return Task(kind=WAIT, wait_seconds=WAIT_SECONDS)
            judging = self.evaluation
            if judging is not None and not judging.done:
                portion = judging.next(worker, now, patience=EVALUATION_PATIENCE)
                if portion is not None:
                    return Task(
                        kind=EVALUATE,
                        id=portion.number,
                        start=portion.start,
                        end=portion.end,
                        pin=judging.number,
                    )
            handed = self.ledger.next(worker, now)
            if handed is not None:
                task = handed.epoch * self.ledger.tasks + handed.task
                if self._tells_tasks:
                    self._tell_task(task, "doing", worker, handed.minibatches, again=handed.again)
                return Task(kind=TRAIN, id=task, epoch=handed.epoch, minibatches=handed.minibatches)
            if self.ledger.over and self.judged and not self.saved and self._may_save(worker, now):
                return Task(kind=SAVE, pin=self.evaluations)
            return Task(kind=WAIT, wait_seconds=WAIT_SECONDS)

    def report(self, progress: Progress) -> list[int]:
        """Count what a worker has done; return what of its minibatches' tasks has not counted."""
        with self.lock:
            worker = progress.worker
            seen = self.heard(worker)
            left = []
            if progress.minibatches and self._same_servers(progress.incarnations):
                left = self._count(worker, seen, progress.epoch, list(progress.minibatches))
            elif progress.minibatches:
                left = self._left(progress.epoch, progress.minibatches)
            for behind in progress.staleness:
                told = self._staleness
                told.most, told.total, told.pushes = (
                    max(told.most, behind),
                    told.total + behind,
                    told.pushes + 1,
                )
            judging = self.evaluation
            for score in progress.scores:
                if judging is not None and judging.number == score.evaluation:
                    judging.report(score.task, images=score.images, correct=score.correct, loss=score.loss)
            if progress.pin_lost:
                self.evaluate_again()
            if progress.saved and not self.saved:
                self.saved = True
                self.write({"saved": True})
            if progress.leaving:
                self.lost(worker, "it was asked to leave")
            return left

    def _count(self, worker: int, seen: WorkerSeen, epoch: int, minibatches: list[int]) -> list[int]:
        new, finished = self.ledger.report(epoch, minibatches, self.clock())
        seen.counted += new
        if new:
            self.write({"done": [epoch, _ranges(minibatches)]})
        for task in finished if self._tells_tasks else ():
            first = task * self.ledger.per_task
            its = range(first, min(first + self.ledger.per_task, self.ledger.minibatches))
            self._tell_task(epoch * self.ledger.tasks + task, "done", worker, its)
        steps = self.ledger.steps
        if self.next_evaluation is not None and steps >= self.next_evaluation and self.test_records:
            every = self.settings.evaluation_steps
            self.next_evaluation = (steps // every + 1) * every
            self.wanted = True
        return self._left(epoch, minibatches)

    def _left(self, epoch: int, minibatches: Iterable[int]) -> list[int]:
        tasks = sorted({number // self.ledger.per_task for number in minibatches})
        return [number for task in tasks for number in self.ledger.left(epoch, task)]

    def _may_save(self, worker: int, now: float) -> bool:
        if self._saving is None or now - self._saving[1] > SAVE_SECONDS or self._saving[0] == worker:
            self._saving = (worker, now)
            return True
        return False

    def _tell_task(self, task: int, state: str, worker: int, minibatches: Iterable[int], **more) -> None:
        spans = (self.ledger.records_of(number) for number in minibatches)
        records = sum(end - start for start, end in spans)
        self.tell("task", id=task, state=state, worker=worker, records=records, **more)

    # Who is there

    def heard(self, worker: int) -> WorkerSeen:
        """Note that a worker lives."""
        with self.lock:
            seen = self.workers.get(worker)
            if seen is None:
                seen = self.workers[worker] = WorkerSeen(self.clock())
                self.next_worker = max(self.next_worker, worker + 1)
                self.tell_world()
            seen.at = self.clock()
            return seen

    def lost(self, worker: int, why: str) -> None:
        """Return what a lost worker had; it is not given anything any more."""
        with self.lock:
            seen = self.workers.get(worker)
            if seen is None or seen.gone:
                return
            seen.gone = True
            self._take_back(worker)
            self.tell("lost", role="worker", worker=worker, reason=why)
            self.tell_world()

    def silent(self, seconds: float) -> None:
        """Return what workers have that were not heard of for so long; they may come back."""
        with self.lock:
            for worker in self.ledger.holders():
                if self.workers[worker].at < self.clock() - seconds:
                    self._take_back(worker)

    def _take_back(self, worker: int) -> None:
        key = self.ledger.lost(worker)
        if self.evaluation is not None:
            self.evaluation.lost(worker)
        if self._saving is not None and self._saving[0] == worker:
            self._saving = None
        if key is not None and self._tells_tasks:
            epoch, task = key
            left = self.ledger.left(epoch, task)
            self._tell_task(epoch * self.ledger.tasks + task, "todo", worker, left)

    def tell_world(self) -> None:
        """Say how many workers and servers there are."""
        workers = sum(not seen.gone for seen in self.workers.values())
        self.tell("world", workers=workers, servers=sum(each is not None for each in self.servers))

    # Servers

    @property
    def ready(self) -> bool:
        """Whether every server has registered."""
        return all(each is not None for each in self.servers)

    def register(self, registration: Registration) -> None:
        """Take in a server; what it has not applied is taken back, to be done again."""
        with self.lock:
            before = self.servers[registration.index]
            another = before is not None and before.incarnation != registration.incarnation
            if another:
                self.replaced.add(before.incarnation)
            self.servers[registration.index] = ServerProcess(
                registration.address, registration.incarnation, registration.version, self.clock()
            )
            applied = {each.epoch: each.bits for each in registration.applied}
            again = 0
            for epoch in self.ledger.snapshot():
                taken = self.ledger.reopen(epoch, applied.get(epoch, b""))
                if taken:
                    again += taken
                    self.write({"bits": [epoch, pack_bits(self.ledger.snapshot()[epoch])]})
            if registration.restored or again or another:
                self.tell("restored", server=registration.index, version=registration.version, again=again)
            if another and self.evaluation is not None:
                self.evaluate_again()
            self.tell_world()

    def pulse(self, index: int, incarnation: int, version: int) -> bool:
        """Note that a server lives; tell whether it is known."""
        with self.lock:
            known = self.servers[index] if 0 <= index < len(self.servers) else None
            if known is None or known.incarnation != incarnation:
                return False
            known.version, known.at = version, self.clock()
            return True

    def silent_servers(self, seconds: float) -> list[int]:
        """Return the servers that were not heard of for so long."""
        with self.lock:
            before = self.clock() - seconds
            return [i for i, each in enumerate(self.servers) if each is not None and each.at < before]

    def forget_server(self, index: int) -> None:
        """Wait for another process in a server's place; the one that was is not let in again."""
        with self.lock:
            known, self.servers[index] = self.servers[index], None
            if known is not None:
                self.replaced.add(known.incarnation)

    def _same_servers(self, incarnations: Iterable[int]) -> bool:
        return self.ready and [each.incarnation for each in self.servers] == list(incarnations)

    # How far it has come

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, or nothing can be done."""
        return bool(self.failed) or (self.ledger.over and self.judged and self.saved)

    def evaluate_again(self) -> None:
        """Give up the evaluation that is running; it begins anew."""
        with self.lock:
            if self.evaluation is not None and not self.evaluation.done:
                self.evaluation = None
                self.wanted = True
            elif self.ledger.over and not self.saved:  # the parameters for the model file are gone
                self.judged = False

    def take_staleness(self) -> dict[str, float] | None:
        """Return how far gradients were behind since the last call; None where there were none."""
        with self.lock:
            told, self._staleness = self._staleness, _Staleness()
        if not told.pushes:
            return None
        return {"max": told.most, "mean": round(told.total / told.pushes, 3), "pushes": told.pushes}

    def fail(self, kind: str, reason: str, *, most: int) -> bool:
        """Count a failure of a kind; give the job up when there are more than ``most``, and tell whether."""
        with self.lock:
            self.failures[kind] = self.failures.get(kind, 0) + 1
            if self.failures[kind] > most and not self.over:
                times = f"{self.failures[kind]} times: " if self.failures[kind] > 1 else ""
                self.give_up(f"{times}{reason}")
            return bool(self.failed)

    def give_up(self, reason: str) -> None:
        """End the job without a result."""
        with self.lock:
            self.failed = reason
            self.write({"failed": reason})

    # What outlives the process

    def snapshot(self) -> dict:
        """Return all that a new master needs to know."""
        with self.lock:
            bits = {str(epoch): pack_bits(its) for epoch, its in self.ledger.snapshot().items()}
            return {
                "records": self.records,
                "minibatch": self.settings.minibatch,
                "first_open": self.ledger.first_open,
                "bits": bits,
                "evaluations": self.evaluations,
                "judged": self.judged,
                "saved": self.saved,
                "failed": self.failed,
                "next_worker": self.next_worker,
            }

    def recover(self, lines: list[dict]) -> None:
        """Go on from a journal.

        Raises:
            ValueError: It is of another job.
        """
        begin = lines[0]
        if (begin["records"], begin["minibatch"]) != (self.records, self.settings.minibatch):
            raise ValueError(
                f"it is of a job with {begin['records']} records in minibatches of {begin['minibatch']}"
            )
        bits = {int(epoch): _unpack_bits(its) for epoch, its in begin["bits"].items()}
        self.ledger.restore(begin["first_open"], bits)
        self.evaluations, self.judged = begin["evaluations"], begin["judged"]
        self.saved, self.failed = begin["saved"], begin["failed"]
        self.next_worker = max(self.next_worker, begin["next_worker"])
        for line in lines[1:]:
            self._replay(line)
        steps, every = self.ledger.steps, self.settings.evaluation_steps
        self.next_evaluation = (steps // every + 1) * every if every else None

    def _replay(self, line: dict) -> None:
        ((what, value),) = line.items()
        if what == "done":
            epoch, ranges = value
            numbers = [number for first, last in ranges for number in range(first, last)]
            self.ledger.report(epoch, numbers, self.clock())
        elif what == "bits":
            self.ledger.reopen(value[0], _unpack_bits(value[1]))
        elif what == "closed":
            self.ledger.close(value)
        elif what == "evaluations":
            self.evaluations = value
        elif what == "judged":
            self.judged = value
        elif what == "worker":
            self.next_worker = max(self.next_worker, value)
        elif what == "saved":
            self.saved = value
        elif what == "failed":
            self.failed = value


def pack_bits(bits: bytes) -> str:
    """Return bits as text for the journal."""
    return base64.b64encode(zlib.compress(bits, 1)).decode()


def _unpack_bits(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Return numbers as ranges [first, last)."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] += 1
        elif not found or number >= found[-1][1]:
            found.append([number, number + 1])
    return found
