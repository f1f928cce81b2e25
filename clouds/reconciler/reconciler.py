"""The loop behind `reconcile`: when each request is sent, and what an error or an interruption does.

One thread, the caller's, decides; the others only send requests, so that an interruption comes between two
decisions. What follows from a status is in `reconcile`.
"""

import contextlib
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import Resource, ResourceStatus
from clouds.reconciler.snapshot import Phase, ReconcileStep, Snapshot, duration
from kitlib.display.progress import shown_elsewhere
from kitlib.errors import Interrupted, KitError, ProviderFailed, WaitTimeout
from kitlib.k8s.wait import ErrorGrace

Report = Callable[[Snapshot], None]

PATIENCE_SECONDS = {"create": 120.0, "delete": 600.0}  # what holds a thing back may itself take minutes to go
MOST_TRIES = 5
AT_ONCE_SECONDS = 1.0  # what takes no longer is looked at as soon as the cloud has taken the request
LONGEST_SECONDS = 1800.0  # a resource may take this, or three times what it takes as a rule


@dataclass
class Task:
    """A resource on its way."""

    resource: Resource
    expected: float
    patience: ErrorGrace
    phase: Phase = Phase.WAITS
    state: str = "waits"
    words: str = ""
    began: float | None = None
    took: float | None = None
    due: float | None = None  # when the next request is sent; None while one is under way
    request: str = "describe"
    tries: int = 0  # how often it was asked for
    unseen: int = 0  # looks since then that did not show what was asked for
    undoing: bool = False
    undone: bool = False
    before: list["Task"] = field(default_factory=list)  # what has to be done first

    @property
    def open(self) -> bool:
        return self.phase in (Phase.WAITS, Phase.RUNS)


class Reconciler(ABC):
    """What both directions share: when to send which request, and what an error does."""

    verb: str

    def __init__(
        self,
        resources: Sequence[Resource],
        title: str,
        resume: str,
        report: Report,
        clock: Clock,
        workers: int,
    ) -> None:
        self.title, self.resume, self.report, self.clock, self.workers = title, resume, report, clock, workers
        self.items = {
            each.name: Task(
                each,
                self.expected(each),
                ErrorGrace(grace=PATIENCE_SECONDS[self.verb], clock=clock.now),
            )
            for each in resources
        }
        assert len(self.items) == len(resources), "two resources have one name"
        self.order()
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.requests = 0
        self.stopping = False
        self.errors: list[BaseException] = []
        self.began = clock.now()

    # What differs

    @abstractmethod
    def expected(self, resource: Resource) -> float: ...

    @abstractmethod
    def order(self) -> None:
        """Fill ``before`` of every item."""

    @abstractmethod
    def saw(self, item: Task, seen: ResourceStatus) -> None:
        """Decide what follows from a look."""

    def refused(self, item: Task, request: str) -> None:  # noqa: B027  (there may be nothing to do)
        """Decide what else follows from a refusal that may pass."""

    # The one loop

    def run(self) -> None:
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix=f"{self.verb}-{self.title}")
        try:
            self.loop(pool)
        except KeyboardInterrupt as error:
            self.stopping = True
            pool.shutdown(cancel_futures=True)  # what is under way ends: the cloud has these requests already
            self.settle()
            raise Interrupted(
                f"stopped {self.verb[:-1]}ing; what the cloud has begun goes on by itself\n{self.stands()}",
                about=self.title,
                fix=f"the same call goes on where it was: {self.resume}",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.conclude()

    def loop(self, pool: ThreadPoolExecutor) -> None:
        while True:
            if not self.stopping:
                self.begin()
                self.send(pool)
            due = [each.due for each in self.items.values() if each.open and each.due is not None]
            if not self.requests and (self.stopping or not due):
                break
            self.report(self.snapshot())
            until = min(due) if due and not self.stopping else float("inf")
            answer = self.clock.receive(self.inbox, until=until, requests=self.requests)
            if answer is not None:
                self.requests -= 1
                self.answered(*answer)
        self.settle()

    def settle(self) -> None:
        """Take in what has come, and say of all that is not done that it is left."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.answered(*self.inbox.get_nowait())
        for item in self.items.values():
            if item.phase is Phase.WAITS:
                item.state = "not begun"
            if item.open:
                item.phase = Phase.LEFT
        self.report(self.snapshot(over=True))

    def begin(self) -> None:
        for item in self.items.values():
            if item.phase is Phase.WAITS:
                held = [each.resource.name for each in item.before if each.phase is not Phase.DONE]
                if held:
                    item.state = f"waits for {', '.join(held)}"
                else:
                    item.phase, item.state, item.began = Phase.RUNS, "being looked at", self.clock.now()
                    item.due = item.began

    def send(self, pool: ThreadPoolExecutor) -> None:
        for item in self.items.values():
            if item.open and item.due is not None and item.due <= self.clock.now():
                item.due = None
                self.requests += 1
                pool.submit(self.carry, item, item.request)

    def carry(self, item: Task, request: str) -> None:
        """Make one request, in a thread of its own, and send back what came of it."""
        try:
            with shown_elsewhere():
                self.inbox.put((item, request, getattr(item.resource, request)(), None))
        except BaseException as error:  # noqa: BLE001  (raised again by the caller's thread)
            self.inbox.put((item, request, None, error))

    def answered(
        self, item: Task, request: str, seen: ResourceStatus | None, error: BaseException | None
    ) -> None:
        poll = item.resource.poll
        if error is not None:
            try:
                if not isinstance(error, KitError):
                    raise error
                item.patience.failed(error)
            except BaseException:  # noqa: BLE001  (kept, and raised when all requests have ended)
                self.fail(item, error)
            else:
                item.words = error.what
                self.refused(item, request)
                self.again(item, request, after=poll)
            return
        item.patience.succeeded()
        if request == "describe":
            item.words = seen.words
            self.saw(item, seen)
            self.check_deadline(item, seen)
        else:
            item.tries += 1
            self.again(
                item, "describe", after=0 if item.expected <= AT_ONCE_SECONDS else min(item.expected, poll)
            )

    # What may follow

    def again(self, item: Task, request: str, *, after: float) -> None:
        item.request, item.due = request, self.clock.now() + after

    def act(self, item: Task, request: str, *, after: float = 0, state: str) -> None:
        """Ask the cloud for something, unless it has been asked too often."""
        if item.tries >= MOST_TRIES:
            self.fail(item, self.gave_up(item, f"asked {item.tries} times, and it did not happen"))
            return
        item.state, item.unseen = state, 0
        self.again(item, request, after=after)

    def done(self, item: Task, state: str) -> None:
        item.phase, item.state, item.due = Phase.DONE, state, None
        item.took = self.clock.now() - item.began

    def fail(self, item: Task, error: BaseException) -> None:
        item.phase, item.state, item.due = Phase.FAILED, "failed", None
        item.took = self.clock.now() - item.began
        item.words = error.what if isinstance(error, KitError) else repr(error)
        self.errors.append(error)

    def gave_up(self, item: Task, what: str) -> KitError:
        return ProviderFailed(
            f"{what}. The cloud says: {item.words or 'nothing'}",
            about=f"{item.resource.name} ({item.resource.kind}) of {self.title}",
            fix=self.resume,
        )

    def check_deadline(self, item: Task, seen: ResourceStatus) -> None:
        longest = max(LONGEST_SECONDS, 3 * item.expected)
        if item.phase is Phase.RUNS and self.clock.now() - item.began > longest:
            what = f"{item.resource.name} took longer than {duration(longest)}. Last seen: {seen.state}"
            self.fail(
                item,
                WaitTimeout(f"{what} {item.words}".rstrip(), about=self.title, fix=self.resume),
            )

    # How it ends

    def conclude(self) -> None:
        """Raise the first error, with what stands."""
        if not self.errors:
            return
        first = next((each for each in self.errors if not isinstance(each, KitError)), self.errors[0])
        if isinstance(first, KitError):
            first.detail = "\n".join(filter(None, (first.detail, self.stands(), f"then: {self.resume}")))
        raise first

    def stands(self) -> str:
        """Describe how each step ended, as lines."""
        lines = [f"{each.name}: {each.state} {each.words}".rstrip() for each in self.snapshot().steps]
        return "\n".join(lines)

    def snapshot(self, *, over: bool = False) -> Snapshot:
        now = self.clock.now()
        rows = tuple(
            ReconcileStep(
                item.resource.name,
                item.resource.kind,
                item.phase,
                item.state,
                item.words,
                item.expected,
                now - item.began if item.took is None and item.began is not None else item.took,
            )
            for item in self.items.values()
        )
        left: dict[str, float] = {}
        remaining = max((self.remaining(item, left, now) for item in self.items.values()), default=0.0)
        return Snapshot(self.title, self.verb, rows, now - self.began, remaining, over)

    def remaining(self, item: Task, known: dict[str, float], now: float) -> float:
        """Return the seconds until it is done as a rule; those who wait for nothing that lives: 0."""
        name = item.resource.name
        if name not in known:
            known[name] = 0.0
            if item.open:
                passed = now - item.began if item.phase is Phase.RUNS else 0.0
                first = max((self.remaining(each, known, now) for each in item.before), default=0.0)
                known[name] = first + max(0.0, item.expected - passed)
        return known[name]
