"""01: an Indexed Job of three pods, two at a time, each of which prints its index. A copy of it is run."""

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
from trainyard_kit.exercises.manifests import add_manifest_checks, check_label, expect
from trainyard_kit.exercises.sandbox import checking

SECONDS = 90
DIAGNOSE_SECONDS = 2  # without a change before the first diagnosis, and between two diagnoses
CANNOT_START = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}  # reasons of a kubelet, which retries without a limit
FREED_BY_OTHERS = {"NoRoom", "TooManyPods", "HostPort", "AntiAffinity", "TopologySpread", "VolumeInUse"}
NEVER_FREED = "Preemption is not helpful"  # the scheduler: not even if all other pods ended
State = dict[str, dict[str, Object]]  # watched objects by kind and name
EXERCISE = Exercise("job", "cluster")
add_manifest_checks(EXERCISE, kind="Job", version="batch/v1")


@EXERCISE.check("three pods must succeed")
def completions(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("completions"), 3, "spec.completions")


@EXERCISE.check("at most two run at the same time")
def parallelism(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("parallelism"), 2, "spec.parallelism")


@EXERCISE.check("each pod has an index")
def completion_mode(job: Object, cluster: Cluster) -> None:
    expect(job["spec"].get("completionMode"), "Indexed", "spec.completionMode")


@EXERCISE.check("a pod that fails is not restarted")
def restart_policy(job: Object, cluster: Cluster) -> None:
    policy = job["spec"]["template"]["spec"].get("restartPolicy")
    if policy != "Never":
        raise NotYet(f"restartPolicy {policy!r} restarts the container of a failed pod: use 'Never'")


@EXERCISE.check("the Job is not suspended")
def not_suspended(job: Object, cluster: Cluster) -> None:
    if job["spec"].get("suspend"):
        raise NotYet("spec.suspend keeps the Job from starting: leave it out")


@EXERCISE.check("the notebook's clean-up cell finds it")
def cleanup_label(job: Object, cluster: Cluster) -> None:
    check_label(job, "01")


@EXERCISE.check("on the cluster, each pod prints its index", last=True)
def prints_index(job: Object, cluster: Cluster) -> None:
    item = copy.deepcopy(job)
    item["metadata"]["name"] = name = names.unique("exercise")
    item["spec"].pop("ttlSecondsAfterFinished", None)  # so that the logs of its pods can be read
    item["spec"]["template"].setdefault("spec", {})["terminationGracePeriodSeconds"] = 1
    item["spec"]["backoffLimit"] = 0  # so that a failed container fails the Job at once
    cluster.kube.create(item)
    try:
        pods = _wait_for_pods(Run(cluster.kube, name))
        lines = [[line.text for line in logs.read(cluster.kube, pod)] for pod in pods]
    finally:
        cluster.kube.delete("Job", name)
    if sorted(lines) != [["0"], ["1"], ["2"]]:
        raise NotYet(f"the pods print {lines}: print only the variable JOB_COMPLETION_INDEX, with a shell")


def _wait_for_pods(run: Run) -> list[dict[str, Any]]:
    """Wait for the end of the Job with a progress line; return its pods.

    Raises:
        NotYet: The Job fails, a pod cannot start, or it takes too long.
    """
    start, shown = time.monotonic(), ["its pods are starting"]
    with checking("running a copy of the Job") as show:
        redraw = show(lambda: shown[0])

        def report(text: str) -> None:
            shown[0] = text
            if redraw:
                redraw()

        try:
            state, is_permanent, reason = wait(
                _diagnosed_states(run),
                until=lambda state: bool({"Complete", "Failed"} & set(_conditions(state[0])) or state[1]),
                timeout=SECONDS,
                what="the Job of the exercise",
                about=f"job/{run.name}",
                describe=lambda state: state[2] or _describe(state[0]),
                report=report,
                resume="kit.check again",
            )
        except WaitTimeout:
            elapsed = f"{time.monotonic() - start:.0f} s"
            raise NotYet(f"its pods have not finished after {elapsed}: {shown[0]}") from None
    if is_permanent:
        raise NotYet(f"its pods cannot start: {reason}")
    if "Failed" in (conditions := _conditions(state)):
        reasons = filter(None, map(pod_states.why, state["Pod"].values()))
        raise NotYet(f"the Job fails: {next(reasons, '') or conditions['Failed']}")
    # The Job's watch may be ahead of the pods' watch, so list the pods.
    return run.kube.get_all("Pod", labels=f"batch.kubernetes.io/job-name={run.name}")


def _conditions(state: State) -> dict[str, str]:
    """Map the Job's true conditions to their messages."""
    return {
        condition["type"]: condition.get("message", "")
        for job in state["Job"].values()
        for condition in job.get("status", {}).get("conditions", ())
        if condition["status"] == "True"
    }


def _describe(state: State) -> str:
    waits = filter(None, map(pod_states.why, state["Pod"].values()))
    return next(waits, "") or ", ".join(map(pod_states.status_word, state["Pod"].values())) or "no pods"


def _diagnosed_states(run: Run) -> Iterator[tuple[State, bool, str]]:
    """Yield states of the Job and its pods, whether waiting is in vain, and why pods do not start."""
    labels = f"batch.kubernetes.io/job-name={run.name}"
    specs = WatchSpec("Job", fields=f"metadata.name={run.name}"), WatchSpec("Pod", labels=labels)
    before, reason, diagnose_at = "", "", 0.0
    for state in watch_objects(run.kube, *specs):
        for pod in state["Pod"].values():
            if pod_states.status_word(pod) in CANNOT_START:
                yield state, True, pod_states.why(pod)
        is_permanent = False
        if (now := _describe(state)) != before:
            before, reason, diagnose_at = now, "", time.monotonic() + DIAGNOSE_SECONDS
        elif time.monotonic() >= diagnose_at and not _running(state):
            is_permanent, reason = _diagnose(run)
            diagnose_at = time.monotonic() + DIAGNOSE_SECONDS
        yield state, is_permanent, reason


def _running(state: State) -> bool:
    return any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in state["Pod"].values())


def _diagnose(run: Run) -> tuple[bool, str]:
    """Find why its pods do not start, and whether that is permanent."""
    if (cause := run.why().first) is None:
        return False, ""
    freed = cause.kind in FREED_BY_OTHERS and NEVER_FREED not in " ".join(cause.evidence)
    return cause.certainty == CERTAIN and not freed, f"{cause.line}; try: {plain(cause.fix)}"
