"""What a run is doing, judged from its main object, its pods and the warnings about it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.k8s import job_kinds
from kitlib.k8s import pods as pod_facts
from kitlib.k8s.manifests import Object

PENDING, RUNNING, SUCCEEDED, FAILED, DELETED = "Pending", "Running", "Succeeded", "Failed", "Deleted"


@dataclass(frozen=True)
class RunStatus:
    """How a run is.

    Attributes:
        phase: Pending, Running, Succeeded, Failed or Deleted. A run whose ranks are not all there is
            pending: those that are wait for the others. One with a number of workers that may change runs
            with the fewest that it may have.
        reason: Why, in the words of whoever knows: the scheduler, the node, the Job; empty when all is well.
            A run that runs has one when the node of a rank does not answer.
        wanted: How many pods it has when complete.
        running: How many run now.
        succeeded: How many ended well.
        failed: How many did not.
    """

    phase: str
    reason: str = ""
    wanted: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in (SUCCEEDED, FAILED, DELETED)

    def __str__(self) -> str:
        if self.phase == RUNNING:
            done = f", {self.succeeded} done" if self.succeeded else ""
            trouble = f"; {self.reason}" if self.reason else ""
            return f"Running: {self.running} of {self.wanted} pods{done}{trouble}"
        if self.phase == SUCCEEDED:
            return f"Succeeded: {self.succeeded} of {self.wanted} pods"
        return f"{self.phase}: {self.reason}" if self.reason else self.phase

    def __repr__(self) -> str:
        return str(self)


def judge(job: Object | None, pods: Iterable[Object], warnings: Iterable[Object] = ()) -> RunStatus:
    """Return the status of a run.

    Args:
        job: Its Job, PyTorchJob …; None if there is none (any more).
        pods: Its pods.
        warnings: Events of type Warning about the Job.
    """
    if job is None:
        return RunStatus(DELETED, "it was deleted, or never launched")
    every = list(pods)
    pods = [
        each for each in every if not each["metadata"].get("deletionTimestamp") or pod_facts.finished(each)
    ]
    phases = [pod_facts.phase(each) for each in pods]
    wanted = job_kinds.wanted(job)
    counts = {
        "wanted": wanted,
        "running": phases.count("Running"),
        "succeeded": phases.count("Succeeded"),
        "failed": phases.count("Failed"),
    }
    if job_kinds.succeeded(job, pods) and not (job_kinds.ends_by_one(job) and counts["running"]):
        return RunStatus(
            SUCCEEDED, **counts | {"succeeded": max(counts["succeeded"], _count(job, "succeeded"))}
        )
    if (words := job_kinds.failure(job, pods)) is not None:
        reasons = [_failure(pods) or _lost(every), words if job_kinds.kind_of(job).explains else ""]
        return RunStatus(FAILED, "; ".join(filter(None, reasons)) or words, **counts)
    if "Suspended" in job_kinds.conditions(job):
        return RunStatus(PENDING, "it is suspended", **counts)
    _, fewest, _ = job_kinds.limits(job)
    begun = counts["running"] + counts["succeeded"] + (counts["failed"] if fewest == wanted else 0)
    if begun >= fewest:
        return RunStatus(RUNNING, _lost(pods) or _waited_for(pods), **counts)
    return RunStatus(PENDING, _held_up(pods, wanted, counts["running"], warnings), **counts)


def _count(job: Object, what: str) -> int:
    return (job.get("status") or {}).get(what) or 0


def _failure(pods: Iterable[Object]) -> str:
    failed = pod_facts.failed(pods)
    return (
        f"{pod_facts.display_name(pod_facts.replica_id(failed[0]))}: {pod_facts.why(failed[0])}"
        if failed
        else ""
    )


def _lost(pods: Iterable[Object]) -> str:
    """Return which rank is on a node that does not answer."""
    words = {pod_facts.replica_id(each): pod_facts.node_unreachable(each) for each in pods}
    return next(
        (f"{pod_facts.display_name(each)}: {words[each]}" for each in sorted(words) if words[each]), ""
    )


def _waited_for(pods: Iterable[Object]) -> str:
    """Return why pods do not run that the others do not need."""
    reasons = (pod_facts.why(each) for each in pods if pod_facts.phase(each) == "Pending")
    return "; ".join(filter(None, dict.fromkeys(reasons)))


def _held_up(pods: list[Object], wanted: int, running: int, warnings: Iterable[Object]) -> str:
    """Return why a run is not complete; one reason for all pods that give the same."""
    reasons: dict[str, list[Object]] = {}
    for each in pods:
        if pod_facts.phase(each) == "Pending":
            reasons.setdefault(pod_facts.why(each), []).append(each)
    told = [words for words in reasons if words]
    if not told and len(pods) < wanted:
        told = [each.get("message", "") for each in warnings][-1:]
    there = f"{running} of {wanted} pods run" if running else ""
    if not told:
        waiting = {pod_facts.word(each) for each in pods} - {"Pending", "Running"}
        return there or ", ".join(sorted(waiting)) or "its pods are being made"
    return "; ".join(filter(None, [there, *told]))
