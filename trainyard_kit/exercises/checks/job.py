"""01: an Indexed Job of three pods, two at a time, each of which prints its number. It is really run."""

import copy
import time
from collections.abc import Iterator
from typing import Any

from kitlib.causes.cause import CERTAIN
from kitlib.clusters import Cluster
from kitlib.errors import WaitTimeout, plain
from kitlib.k8s import logs, names
from kitlib.k8s import pods as pod_states
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.runs.run import Run
from trainyard_kit.exercises.checklist import Exercise, NotYet
from trainyard_kit.exercises.manifests import check_kind, check_label, dry_run, expect
from trainyard_kit.exercises.sandbox import checking

SECONDS = 90
LOOK_SECONDS = 2  # without a change, before the kit looks for the cause; and between two looks
CANNOT_START = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}  # of a kubelet: what it tries again without end
FREED_BY_OTHERS = {"NoRoom", "TooManyPods", "HostPort", "AntiAffinity", "TopologySpread", "VolumeInUse"}
NEVER_FREED = "Preemption is not helpful"  # the scheduler: not even if all other pods were gone
State = dict[str, dict[str, Object]]  # by kind and name, as it is watched
EXERCISE = Exercise("job", "cluster")


@EXERCISE.check("it is a Job", essential=True)
def kind(job: Object, cluster: Cluster) -> None:
    check_kind(job, kind="Job", version="batch/v1")


@EXERCISE.check("the API server accepts it (a dry run)", essential=True)
def accepted(job: Object, cluster: Cluster) -> None:
    dry_run(cluster, job)


@EXERCISE.check("three pods have to succeed")
def completions(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("completions"), 3, "spec.completions")


@EXERCISE.check("at most two run at the same time")
def parallelism(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("parallelism"), 2, "spec.parallelism")


@EXERCISE.check("each pod has a number")
def numbered(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("completionMode"), "Indexed", "spec.completionMode")


@EXERCISE.check("a pod that fails is not restarted")
def restarts(job: Object, cluster: Cluster) -> None:
    policy = job["spec"]["template"]["spec"].get("restartPolicy")
    if policy != "Never":
        raise NotYet(f"restartPolicy {policy!r} starts the container of a failed pod again: use 'Never'")


@EXERCISE.check("the Job starts by itself")
def begins(job: Object, cluster: Cluster) -> None:
    if job["spec"].get("suspend"):
        raise NotYet("spec.suspend suspends the Job until it is changed: leave it out")


@EXERCISE.check("the notebook's last cell finds it")
def labelled(job: Object, cluster: Cluster) -> None:
    check_label(job, "01")


@EXERCISE.check("run on the cluster, each pod prints its number", last=True)
def runs(job: Object, cluster: Cluster) -> None:
    item = copy.deepcopy(job)
    item["metadata"]["name"] = name = names.unique("exercise")
    item["spec"].pop("ttlSecondsAfterFinished", None)  # its pods' logs are read first
    item["spec"]["template"].setdefault("spec", {})["terminationGracePeriodSeconds"] = 1
    item["spec"]["backoffLimit"] = 0  # a container that fails is judged at once
    cluster.kube.create(item)
    try:
        pods = _ended(Run(cluster.kube, name))
        lines = [[line.text for line in logs.read(cluster.kube, pod)] for pod in pods]
    finally:
        cluster.kube.delete("Job", name)
    if sorted(lines) != [["0"], ["1"], ["2"]]:
        raise NotYet(f"the pods print {lines}: print only the variable JOB_COMPLETION_INDEX, by a shell")


def _ended(run: Run) -> list[dict[str, Any]]:
    """Wait for the end of the Job with a line that moves; return its pods.

    Raises:
        NotYet: It fails, a pod of it cannot start, or it takes too long.
    """
    began, shown = time.monotonic(), ["its pods start"]
    with checking("running a copy of the Job") as show:
        move = show(lambda: shown[0])

        def report(text: str) -> None:
            shown[0] = text
            if move:
                move()

        try:
            ended, hopeless, reason = wait(
                _explained(run),
                until=lambda state: bool({"Complete", "Failed"} & set(_conditions(state[0])) or state[1]),
                timeout=SECONDS,
                what="the Job of the exercise",
                about=f"job/{run.name}",
                describe=lambda state: state[2] or _describe(state[0]),
                report=report,
                resume="kit.check again",
            )
        except WaitTimeout:
            passed = f"{time.monotonic() - began:.0f} s"
            raise NotYet(f"its pods have not ended after {passed}: {shown[0]}") from None
    if hopeless:
        raise NotYet(f"its pods cannot start: {reason}")
    if "Failed" in (conditions := _conditions(ended)):
        reasons = filter(None, map(pod_states.why, ended["Pod"].values()))
        raise NotYet(f"the Job fails: {next(reasons, '') or conditions['Failed']}")
    # Listed anew: the Job's watch may be ahead of that of its pods.
    return run.kube.get_all("Pod", labels=f"batch.kubernetes.io/job-name={run.name}")


def _conditions(state: State) -> dict[str, str]:
    """List the Job's conditions that hold, with their messages."""
    return {
        condition["type"]: condition.get("message", "")
        for job in state["Job"].values()
        for condition in job.get("status", {}).get("conditions", ())
        if condition["status"] == "True"
    }


def _describe(state: State) -> str:
    waits = filter(None, map(pod_states.why, state["Pod"].values()))
    return next(waits, "") or ", ".join(map(pod_states.status_word, state["Pod"].values())) or "no pods"


def _explained(run: Run) -> Iterator[tuple[State, bool, str]]:
    """Follow the Job and its pods; beside them, whether none of them can start, and why they do not."""
    labels = f"batch.kubernetes.io/job-name={run.name}"
    specs = WatchSpec("Job", fields=f"metadata.name={run.name}"), WatchSpec("Pod", labels=labels)
    before, reason, look_at = "", "", 0.0
    for state in watch_objects(run.kube, *specs):
        for pod in state["Pod"].values():
            if pod_states.status_word(pod) in CANNOT_START:
                yield state, True, pod_states.why(pod)
        hopeless = False
        if (now := _describe(state)) != before:
            before, reason, look_at = now, "", time.monotonic() + LOOK_SECONDS
        elif time.monotonic() >= look_at and not _running(state):
            hopeless, reason = _standstill(run)
            look_at = time.monotonic() + LOOK_SECONDS
        yield state, hopeless, reason


def _running(state: State) -> bool:
    return any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in state["Pod"].values())


def _standstill(run: Run) -> tuple[bool, str]:
    """Find why its pods do not start, and whether waiting cannot help."""
    if (cause := run.why().first) is None:
        return False, ""
    freed = cause.kind in FREED_BY_OTHERS and NEVER_FREED not in " ".join(cause.evidence)
    return cause.certainty == CERTAIN and not freed, f"{cause.line}; try: {plain(cause.fix)}"
