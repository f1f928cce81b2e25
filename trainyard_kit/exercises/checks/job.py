"""01: an Indexed Job of three pods, two at a time, each of which prints its number. It is really run."""

import copy

from kitlib.k8s import logs, names
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from trainyard_kit.exercises.checklist import Exercise, NotYet
from trainyard_kit.exercises.manifests import check_kind, check_label, dry_run, expect

SECONDS = 90
EXERCISE = Exercise("job", "cluster")


@EXERCISE.check("it is a Job", essential=True)
def kind(job, cluster):
    check_kind(job, kind="Job", version="batch/v1")


@EXERCISE.check("the API server accepts it (a dry run)", essential=True)
def accepted(job, cluster):
    dry_run(cluster, job)


@EXERCISE.check("three pods have to succeed")
def completions(job, cluster):
    expect(job["spec"].get("completions"), 3, "spec.completions")


@EXERCISE.check("at most two run at the same time")
def parallelism(job, cluster):
    expect(job["spec"].get("parallelism"), 2, "spec.parallelism")


@EXERCISE.check("each pod has a number")
def numbered(job, cluster):
    expect(job["spec"].get("completionMode"), "Indexed", "spec.completionMode")


@EXERCISE.check("a pod that fails is not restarted")
def restarts(job, cluster):
    policy = job["spec"]["template"]["spec"].get("restartPolicy")
    if policy != "Never":
        raise NotYet(f"restartPolicy {policy!r} starts the container of a failed pod again: use 'Never'")


@EXERCISE.check("the Job begins by itself")
def begins(job, cluster):
    if job["spec"].get("suspend"):
        raise NotYet("spec.suspend holds the Job back until somebody changes it: leave it out")


@EXERCISE.check("the notebook's last cell finds it")
def labelled(job, cluster):
    check_label(job, "01")


@EXERCISE.check("run on the cluster, each pod prints its number", last=True)
def runs(job, cluster):
    item = copy.deepcopy(job)
    item["metadata"]["name"] = name = names.unique("exercise")
    item["spec"].pop("ttlSecondsAfterFinished", None)  # its pods' logs are read first
    item["spec"]["template"].setdefault("spec", {})["terminationGracePeriodSeconds"] = 1
    cluster.kube.create(item)
    try:
        pods = _ended(cluster.kube, name)
        said = [[line.text for line in logs.read(cluster.kube, pod)] for pod in pods]
    finally:
        cluster.kube.delete("Job", name)
    if sorted(said) != [["0"], ["1"], ["2"]]:
        raise NotYet(f"the pods print {said}: print only the variable JOB_COMPLETION_INDEX, by a shell")


def _ended(kube, name: str) -> list[dict]:
    """Wait for the end of the Job; return its pods."""
    labels = f"batch.kubernetes.io/job-name={name}"
    states = watch_objects(
        kube, WatchSpec("Job", fields=f"metadata.name={name}"), WatchSpec("Pod", labels=labels)
    )

    def conditions(state) -> dict[str, str]:
        found = [
            condition
            for job in state["Job"].values()
            for condition in job.get("status", {}).get("conditions", ())
        ]
        return {
            condition["type"]: condition.get("message", "")
            for condition in found
            if condition["status"] == "True"
        }

    def describe(state) -> str:
        return ", ".join(f"{pod['status']['phase']}" for pod in state["Pod"].values()) or "no pods"

    what, about = "the Job of the exercise", f"job/{name}"
    ended = wait(
        states,
        until=lambda state: {"Complete", "Failed"} & set(conditions(state)),
        timeout=SECONDS,
        what=what,
        about=about,
        describe=describe,
        resume="look at its pods: kubectl describe pods",
    )
    if "Failed" in conditions(ended):
        raise NotYet(f"the Job fails: {conditions(ended)['Failed'] or 'its pods do not succeed'}")
    return list(ended["Pod"].values())
