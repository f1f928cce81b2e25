"""Who is to run, who runs, and what is done about the difference: the master's rules for its processes.

A lost worker is replaced by one with a new index, a lost server by one with the same index: its address and
its checkpoint belong to the index. A worker that waits for a place in the cluster (preempted, and made anew)
is left waiting. What starts and ends processes is behind `Hands`; the one for Kubernetes is in ``pods``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .job import Job

WORKER, SERVER = "worker", "ps"
FREE = ("deleted", "preempted", "evicted", "node lost")  # nobody's fault: these do not count
KILLED = ("killed", "out of memory")  # count while nothing is done in between


@dataclass(frozen=True)
class Member:
    """A process as the cluster sees it.

    Attributes:
        role: `WORKER` or `SERVER`.
        index: Its number.
        over: Why it has ended, or ends; empty while it waits or runs.
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

    def launch(self, role: str, index: int) -> None:
        """Start one; no error if it is there."""

    def remove(self, role: str, index: int) -> None:
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
        self._servers: set[int] = set()
        self._blamed: set[tuple[str, int]] = set()  # have said themselves why they fail

    def start(self) -> None:
        """Take over what runs, and start what is missing."""
        settings = self._job.settings
        there = self._hands.members()
        running = sorted(each.index for each in there if each.role == WORKER and not each.over)
        self._workers = set(running[: settings.workers])
        with self._job.lock:
            known = [each.index + 1 for each in there if each.role == WORKER]
            self._job.next_worker = max([self._job.next_worker, *known])
        for index in range(settings.servers):
            self._servers.add(index)
            self._hands.launch(SERVER, index)
        while len(self._workers) < settings.workers:
            self._add()

    def tick(self) -> None:
        """Look who has gone, and replace them."""
        there = {(each.role, each.index): each for each in self._hands.members()}
        for index in sorted(self._servers):
            member = there.get((SERVER, index))
            if member is None or member.over:
                self._replace(SERVER, index, member)
        for index in sorted(self._workers):
            member = there.get((WORKER, index))
            if member is None or member.over:
                self._replace(WORKER, index, member)

    def blame(self, role: str, index: int, reason: str) -> None:
        """Take down that a process has said itself why it fails."""
        self._blamed.add((role, index))
        what = f"{role} {index} failed: {reason}"
        self._job.fail("error", what, most=self._job.settings.max_relaunches)

    def _replace(self, role: str, index: int, member: Member | None) -> None:
        kind = member.over if member else "deleted"
        reason = member.reason if member and member.reason else kind
        if role == WORKER:
            self._workers.discard(index)
            self._job.lost(index, reason)
        if self._job.over or self._counts(role, index, kind, reason):
            return
        if role == SERVER:
            if member is not None:
                self._hands.remove(role, index)
            self._hands.launch(role, index)
            new = index
        else:
            new = self._add()
        self._tell("relaunch", of=role, index=new, instead_of=index, kind=kind, reason=reason)

    def _counts(self, role: str, index: int, kind: str, reason: str) -> bool:
        """Count a loss that is somebody's fault; tell whether the job is given up for it."""
        if kind in FREE:
            return False
        if (role, index) in self._blamed:
            self._blamed.discard((role, index))
            return False
        if kind in KILLED and role == WORKER:
            with self._job.lock:
                seen = self._job.workers.get(index)
                if seen is not None and seen.counted:
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
        self._hands.launch(WORKER, index)
        return index
