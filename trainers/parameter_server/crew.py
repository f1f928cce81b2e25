"""Who is to run, who runs, and what is done about the difference: the master's rules for its processes.

A lost worker is replaced by one with a new index, a lost server by one with the same index: its checkpoint
belongs to the index. A worker that waits for a place in the cluster (preempted, and made anew) is left
waiting. What starts and ends processes is behind `Hands`; the one for Kubernetes is in ``pods``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .job import Job

ROLES = WORKER, SERVER = "worker", "ps"
FREE = (
    "deleted",
    "preempted",
    "evicted",
    "node lost",
    "finished",
    "silent",
)  # nobody's fault: these do not count
SILENT_SECONDS = 30.0  # after which a server is replaced though its pod runs
KILLED = ("killed", "out of memory")  # count while nothing is done in between


@dataclass(frozen=True)
class Member:
    """A process as the cluster sees it.

    Attributes:
        role: `WORKER` or `SERVER`.
        index: Its number.
        over: Why it has ended, or ends, in a word; empty while it waits or runs.
        reason: The same for people.
    """

    role: str
    index: int
    over: str = ""
    reason: str = ""


class Hands(Protocol):
    """What starts processes and sees them."""

    def members(self) -> list[Member]:
        """Return all of the job's, those that have ended as well, from what is known now; quickly."""

    def wanted(self) -> int | None:
        """Return how many workers are asked for now; None: as many as at the beginning."""

    def launch(self, role: str, index: int) -> bool:
        """Start one; tell whether it is there now."""

    def remove(self, role: str, index: int, *, now: bool = False) -> None:
        """Delete one; no error if it is gone."""


class Crew:
    """Keep as many workers and servers as were asked for.

    Args:
        job: Whose.
        hands: What starts them.
        tell: Says events.
    """

    def __init__(self, job: Job, hands: Hands, tell: Callable) -> None:
        self._job, self._hands, self._tell = job, hands, tell
        self._workers: set[int] = set()
        self._servers = set(range(job.settings.servers))
        self._to_launch: set[tuple[str, int]] = set()
        self._blamed: set[tuple[str, int]] = set()  # have said themselves why they fail

    def start(self) -> None:
        """Take over what runs, and start what is missing."""
        there = self._hands.members()
        with self._job.lock:
            known = [each.index + 1 for each in there if each.role == WORKER]
            self._job.next_worker = max([self._job.next_worker, *known])
        self._workers = {each.index for each in there if each.role == WORKER and not each.over}
        running = {each.index for each in there if each.role == SERVER and not each.over}
        self._to_launch |= {(SERVER, index) for index in self._servers - running}
        for each in there:
            if each.role == SERVER and each.over:
                self._hands.remove(SERVER, each.index, now=True)
        self.tick()

    def tick(self) -> None:
        """Look who has gone, and replace them; have as many workers as are wanted now."""
        there = {(each.role, each.index): each for each in self._hands.members()}
        for role, indexes in ((SERVER, self._servers), (WORKER, self._workers)):
            for index in sorted(indexes):
                member = there.get((role, index))
                if (role, index) not in self._to_launch and (member is None or member.over):
                    self._replace(role, index, member)
        for index in self._job.silent_servers(SILENT_SECONDS):  # stopped, or cut off: all wait for it
            self._replace(SERVER, index, Member(SERVER, index, "silent", "nothing was heard of it"))
        if not self._job.over:
            self._fit()
            for role, index in sorted(self._to_launch):
                if self._hands.launch(role, index):
                    self._to_launch.discard((role, index))

    def blame(self, role: str, index: int, reason: str) -> None:
        """Take down that a process has said itself why it fails."""
        self._blamed.add((role, index))
        what = f"{role} {index} failed: {reason}"
        self._job.fail("error", what, most=self._job.settings.max_relaunches)

    def _fit(self) -> None:
        """Have as many workers as are wanted; the newest go first."""
        asked = self._hands.wanted()
        wanted = self._job.settings.workers if asked is None else max(1, asked)
        while len(self._workers) < wanted:
            self._add()
        for index in sorted(self._workers)[wanted:]:
            self._workers.discard(index)
            if (WORKER, index) in self._to_launch:
                self._to_launch.discard((WORKER, index))
            else:
                self._hands.remove(WORKER, index)  # it gives back the rest of its task

    def _replace(self, role: str, index: int, member: Member | None) -> None:
        kind = member.over if member else "deleted"
        reason = member.reason if member and member.reason else "its pod is gone"
        if role == WORKER:
            self._workers.discard(index)
            self._job.lost(index, reason)
        if self._job.over or self._counts(role, index, kind, reason):
            return
        if role == SERVER:
            self._job.forget_server(index)
            if member is not None:
                self._hands.remove(role, index, now=True)
            self._to_launch.add((role, index))
            new = index
        else:
            asked = self._hands.wanted()
            if asked is not None and len(self._workers) >= max(1, asked):
                return
            new = self._add()
        self._tell("relaunch", of=role, index=new, instead_of=index, kind=kind, reason=reason)

    def _counts(self, role: str, index: int, kind: str, reason: str) -> bool:
        """Count a loss that is somebody's fault; tell whether the job is given up for it."""
        if kind in FREE:
            return False
        if (role, index) in self._blamed:
            self._blamed.discard((role, index))
            return False
        with self._job.lock:
            steps = self._job.ledger.steps
            seen = self._job.workers.get(index) if role == WORKER else None
            moved = seen.counted > 0 if role == WORKER and seen else False
            if role == SERVER:
                moved = steps > self._job.steps_at.get(index, -1)
                self._job.steps_at[index] = steps
            if kind in KILLED and moved:
                self._job.failures.pop(kind, None)
                return False
        words = f"{role} {index}: {reason}"
        return self._job.fail(kind, words, most=self._job.settings.max_relaunches)

    def _add(self) -> int:
        with self._job.lock:
            index = self._job.next_worker
            self._job.next_worker += 1
            self._job.write({"worker": index + 1})
        self._workers.add(index)
        self._to_launch.add((WORKER, index))
        return index
