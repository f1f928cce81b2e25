"""Reconcile the running workers and servers with the desired ones.

A lost worker is replaced by one with a new index, a lost server by one with the same index, because its
checkpoint belongs to the index. A pending worker (preempted and recreated) stays pending. The processes
themselves are pods, which ``pods`` creates and deletes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .job import JobState
from .settings import SERVER, WORKER

if TYPE_CHECKING:  # imports the Kubernetes client
    from .pods import Pods

FREE = (
    "deleted",
    "preempted",
    "evicted",
    "node lost",
    "finished",
    "silent",
    "rejected",
)  # disruptions, which do not count as failures
SILENT_SECONDS = 30.0  # after which a server is replaced although its pod runs
KILLED = ("killed", "out of memory")  # counted until work is completed in between


class ProcessManager:
    """Keep the desired number of workers and servers running.

    Args:
        job: The job.
        pods: Starts the processes.
        log_event: Logs events.
    """

    def __init__(self, job: JobState, pods: "Pods", log_event: Callable[..., Any]) -> None:
        self._job, self._pods, self._log_event = job, pods, log_event
        self._workers: set[int] = set()
        self._servers = set(range(job.settings.servers))
        self._to_launch: set[tuple[str, int]] = set()
        self._reported: set[tuple[str, int]] = set()  # processes that have reported their own failure

    def start(self) -> None:
        """Adopt running processes, and start missing ones."""
        members = self._pods.members()
        with self._job.lock:
            known = [member.index + 1 for member in members if member.role == WORKER]
            self._job.next_worker = max([self._job.next_worker, *known])
        self._workers = {member.index for member in members if member.role == WORKER and not member.over}
        running = {member.index for member in members if member.role == SERVER and not member.over}
        self._to_launch |= {(SERVER, index) for index in self._servers - running}
        for member in members:
            if member.role == SERVER and member.over:
                self._pods.remove(SERVER, member.index, now=True)
        self.tick()

    def tick(self) -> None:
        """Replace lost processes, and scale to the desired number of workers."""
        members = {(member.role, member.index): member for member in self._pods.members()}
        for role, indexes in ((SERVER, self._servers), (WORKER, self._workers)):
            for index in sorted(indexes):
                member = members.get((role, index))
                if (role, index) not in self._to_launch and (member is None or member.over):
                    kind, reason = (member.over, member.reason) if member else ("deleted", "")
                    self._replace(role, index, kind, reason or "its pod no longer exists")
        for index in self._job.silent_servers(
            SILENT_SECONDS
        ):  # paused or disconnected, so that all wait for it
            self._replace(SERVER, index, "silent", "no heartbeat")
        if not self._job.over:
            self._fit()
            for role, index in sorted(self._to_launch):
                if self._pods.launch(role, index):
                    self._to_launch.discard((role, index))

    def record_failure(self, role: str, index: int, reason: str) -> None:
        """Record a failure that a process has reported itself."""
        self._reported.add((role, index))
        what = f"{role} {index} failed: {reason}"
        self._job.fail("error", what, most=self._job.settings.max_relaunches)

    def delete_unreached(self, *, reached: set[tuple[str, int]]) -> None:
        """Delete pending and unreachable processes, which would otherwise wait for the master.

        Args:
            reached: Role and index of those that know that the job is over; they end by themselves, as do
                those that have reported their own failure.
        """
        for member in self._pods.members():
            if not member.over and (member.role, member.index) not in reached | self._reported:
                self._pods.remove(member.role, member.index)

    def _fit(self) -> None:
        """Scale to the desired number of workers; remove the newest first."""
        requested = self._pods.desired_workers()
        workers = self._job.settings.workers if requested is None else max(1, requested)
        while len(self._workers) < workers:
            self._add()
        for index in sorted(self._workers)[workers:]:
            self._workers.discard(index)
            if (WORKER, index) in self._to_launch:
                self._to_launch.discard((WORKER, index))
            else:
                self._pods.remove(WORKER, index)  # it returns the rest of its task

    def _replace(self, role: str, index: int, kind: str, reason: str) -> None:
        if role == WORKER:
            self._workers.discard(index)
            self._job.lost(index, reason)
        if self._job.over or self._count_failure(role, index, kind, reason):
            return
        if role == SERVER:
            self._job.forget_server(index)
            self._pods.remove(role, index, now=True)
            self._to_launch.add((role, index))
            new = index
        else:
            requested = self._pods.desired_workers()
            if requested is not None and len(self._workers) >= max(1, requested):
                return
            new = self._add()
        self._log_event("relaunch", of=role, index=new, instead_of=index, kind=kind, reason=reason)

    def _count_failure(self, role: str, index: int, kind: str, reason: str) -> bool:
        """Count a failure; return True if the job fails because of it."""
        if kind in FREE:
            return False
        if (role, index) in self._reported:
            self._reported.discard((role, index))
            return False
        with self._job.lock:
            steps = self._job.ledger.steps
            worker = self._job.workers.get(index) if role == WORKER else None
            has_progressed = worker.counted > 0 if role == WORKER and worker else False
            if role == SERVER:
                has_progressed = steps > self._job.steps_at.get(index, -1)
                self._job.steps_at[index] = steps
            if kind in KILLED and has_progressed:
                self._job.failures.pop(kind, None)
                return False
        message = f"{role} {index}: {reason}"
        return self._job.fail(kind, message, most=self._job.settings.max_relaunches)

    def _add(self) -> int:
        with self._job.lock:
            index = self._job.next_worker
            self._job.next_worker += 1
        self._workers.add(index)
        self._to_launch.add((WORKER, index))
        return index
