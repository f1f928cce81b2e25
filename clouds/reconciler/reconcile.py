"""Create or delete many resources: in the order of their dependencies, in parallel where these allow.

No progress is stored: the current state is what the cloud says, so the same call, from any machine, continues
where another one stopped. The loop is in `reconciler`, the table of the steps in `steps_table`.
"""

from collections.abc import Sequence

from clouds.reconciler.clock import Clock
from clouds.reconciler.reconciler import Reconciler, Report, Task
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.reconciler.snapshot import Phase

WORKERS = 8
UNSEEN_LOOKS = 4  # a cloud shows what it has done only a little later


def bring_up(
    resources: Sequence[Resource],
    *,
    title: str,
    resume: str,
    report: Report = lambda snapshot: None,
    clock: Clock | None = None,
    workers: int = WORKERS,
) -> None:
    """Make what is not there yet, and wait until all is ready.

    Args:
        resources: With unique names; what they need is among them.
        title: What they are together: ``cluster lab``.
        resume: How to go on after an error or an interruption.
        report: Called from this thread with how far it is, at each change and once a second.
        clock: By default the one on the wall.
        workers: How many requests are under way at most.

    Raises:
        KitError: As a resource raised it, with what stands; nothing more is begun after it.
        Interrupted: The user stopped it; the same call goes on where it was.
    """
    _BringUp(resources, title, resume, report, clock or Clock(), workers).run()


def take_down(
    resources: Sequence[Resource],
    *,
    title: str,
    resume: str,
    report: Report = lambda snapshot: None,
    clock: Clock | None = None,
    workers: int = WORKERS,
) -> None:
    """Delete what is there, each after all that need it, and wait until it is gone.

    One that cannot be deleted holds up what it needs, and nothing else.

    Args:
        resources: With unique names; needs that are not among them do not matter.
        title: What they are together.
        resume: How to go on after an error or an interruption.
        report: As for `bring_up`.
        clock: By default the one on the wall.
        workers: How many requests are under way at most.

    Raises:
        KitError: The first that a resource raised, with what is left, when all else is gone.
        Interrupted: The user stopped it; the same call goes on where it was.
    """
    _TakeDown(resources, title, resume, report, clock or Clock(), workers).run()


class _BringUp(Reconciler):
    verb = "create"

    def expected(self, resource: Resource) -> float:
        return resource.expected

    def order(self) -> None:
        for item in self.items.values():
            item.before = [self.items[name] for name in item.resource.depends_on]

    def fail(self, item: Task, error: BaseException) -> None:
        super().fail(item, error)
        self.stopping = True

    def saw(self, item: Task, seen: ResourceStatus) -> None:
        poll, asked = item.resource.poll, item.tries > 0
        match seen.state:
            case ResourceState.READY:
                self.done(item, "ready" if asked else "was there")
            case ResourceState.PENDING:
                item.state = "being made"
                self.again(item, "describe", after=poll)
            case ResourceState.PARTIAL:
                self.act(item, "create", after=poll if asked else 0, state="being made")
            case ResourceState.ABSENT if asked and not item.undoing and item.unseen < UNSEEN_LOOKS:
                item.unseen += 1
                self.again(item, "describe", after=poll)
            case ResourceState.ABSENT:
                item.undoing = False
                self.act(item, "create", state="being made")
            case ResourceState.DELETING:
                item.undoing, item.state = True, "being deleted first"
                self.again(item, "describe", after=poll)
            case ResourceState.FAILED if item.undoing:
                self.act(item, "delete", after=poll, state="being deleted first")
            case ResourceState.FAILED if not asked or (item.resource.again and not item.undone):
                item.undoing = item.undone = True
                self.act(item, "delete", state="being deleted first")
            case ResourceState.FAILED:
                self.fail(item, self.gave_up(item, f"{item.resource.name} could not be made"))


class _TakeDown(Reconciler):
    verb = "delete"

    def expected(self, resource: Resource) -> float:
        return resource.expected_gone

    def order(self) -> None:
        for item in self.items.values():
            for name in item.resource.depends_on:
                if name in self.items:
                    self.items[name].before.append(item)

    def refused(self, item: Task, request: str) -> None:
        """Look again at what needs it and was not seen: somebody may have made it a moment before."""
        for each in item.before:
            if request == "delete" and each.phase is Phase.DONE and not each.tries:
                each.phase, each.took = Phase.RUNS, None
                self.again(each, "describe", after=0)

    def saw(self, item: Task, seen: ResourceStatus) -> None:
        poll, asked = item.resource.poll, item.tries > 0
        match seen.state:
            case ResourceState.ABSENT:
                self.done(item, "gone")
            case ResourceState.DELETING:
                item.state = "being deleted"
                self.again(item, "describe", after=poll)
            case ResourceState.PARTIAL | ResourceState.FAILED if asked:
                self.act(item, "delete", after=poll, state="being deleted")
            case _ if asked and item.unseen < UNSEEN_LOOKS:
                item.unseen += 1
                self.again(item, "describe", after=poll)
            case _:
                self.act(item, "delete", state="being deleted")
