"""01: an Indexed Job of three pods, two at a time, each of which prints its number. It is really run."""

import copy
from typing import Any

from kitlib.clusters import Cluster
from kitlib.errors import WaitTimeout
from kitlib.k8s import logs, names
from kitlib.k8s import pods as pod_states
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from trainyard_kit.exercises.checklist import Exercise, NotYet
from trainyard_kit.exercises.manifests import check_kind, check_label, dry_run, expect

SECONDS = 90
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
        pods = _ended(cluster.kube, name)
        lines = [[line.text for line in logs.read(cluster.kube, pod)] for pod in pods]
    finally:
        cluster.kube.delete("Job", name)
    if sorted(lines) != [["0"], ["1"], ["2"]]:
        raise NotYet(f"the pods print {lines}: print only the variable JOB_COMPLETION_INDEX, by a shell")


def _ended(kube: Kube, name: str) -> list[dict[str, Any]]:
    """Wait for the end of the Job; return its pods.

    Raises:
        NotYet: It fails, a container of it cannot start, or it takes too long.
    """
    labels = f"batch.kubernetes.io/job-name={name}"
    states = watch_objects(
        kube, WatchSpec("Job", fields=f"metadata.name={name}"), WatchSpec("Pod", labels=labels)
    )

    def conditions(state: State) -> dict[str, str]:
        return {
            condition["type"]: condition.get("message", "")
            for job in state["Job"].values()
            for condition in job.get("status", {}).get("conditions", ())
            if condition["status"] == "True"
        }

    def describe(state: State) -> str:
        waits = filter(None, map(pod_states.why, state["Pod"].values()))
        return next(waits, "") or ", ".join(map(pod_states.status_word, state["Pod"].values())) or "no pods"

    def unable(state: State) -> str:
        """Say why a container of it cannot start."""
        waiting = [pod for pod in state["Pod"].values() if pod_states.status_word(pod) in CANNOT_START]
        return pod_states.why(waiting[0]) if waiting else ""

    try:
        ended = wait(
            states,
            until=lambda state: bool({"Complete", "Failed"} & set(conditions(state)) or unable(state)),
            timeout=SECONDS,
            what="the Job of the exercise",
            about=f"job/{name}",
            describe=describe,
            resume="kit.check again",
        )
    except WaitTimeout as error:
        raise NotYet(f"its pods have not ended: {error.what}") from None
    if reason := unable(ended):
        raise NotYet(f"a container cannot start: {reason}")
    if "Failed" in conditions(ended):
        reasons = filter(None, map(pod_states.why, ended["Pod"].values()))
        raise NotYet(f"the Job fails: {next(reasons, '') or conditions(ended)['Failed']}")
    return list(ended["Pod"].values())
