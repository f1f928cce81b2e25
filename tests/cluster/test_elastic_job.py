"""ElasticJobs as Kubernetes treats their workers: scaled, deleted, preempted, killed in a loop."""

import pytest

import kitlib as kit
from kitlib.errors import CommandFailed, LaunchRejected
from kitlib.k8s import pods
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# A worker that trains without torch, and leaves when it is told to.
WORKER = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for step in range(10_000):
    time.sleep(0.1)
    said = {"event": "step", "time": time.time(), "rank": 0, "world_size": 1, "step": step}
    print(json.dumps(said | {"loss": 1 / (1 + step)}), flush=True)
"""
START = "exec python /trainyard/trainer/trainer.py"


# Ready long after the controller of ElasticJobs.
READY_LATE = {
    "name": "main",
    "image": "busybox",
    "command": ["sleep", "600"],
    "readinessProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 8},
}
LATE = {"matchLabels": {"app": "late"}}
STATEFUL_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "late", "labels": {"trainyard/operator": "elastic-job", "trainyard/kit": "true"}},
    "spec": {
        "selector": LATE,
        "template": {"metadata": {"labels": LATE["matchLabels"]}, "spec": {"containers": [READY_LATE]}},
    },
}


@pytest.fixture(scope="module")
def elastic_job(local_cluster):
    """The operator, installed when all of its workloads are ready; removed afterwards."""
    local_cluster.kube.create(STATEFUL_SET)
    try:
        kit.install("elastic-job", cluster=local_cluster)
        assert local_cluster.kube.get("StatefulSet", "late")["status"].get("availableReplicas") == 1
    finally:
        local_cluster.kubectl("delete statefulset late")
    yield
    assert not len(kit.uninstall("elastic-job", cluster=local_cluster))


def plain(job, command):
    """Return the job with a shell's command in place of its own; a shell lets torchrun's flags be."""
    container = {"name": "elasticjob-worker", "command": ["sh", "-c", command], "args": []}
    worker = {"template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 2}}}
    return job.patch({"spec": {"replicaSpecs": {"Worker": worker}}})


def named(by_name, prefix):
    """Return the pods whose names begin so, by name, without the etcd at which workers meet."""
    return {
        name: pod for name, pod in by_name.items() if name.startswith(prefix) and not name.endswith("-etcd")
    }


def running(by_name, prefix):
    """Return the names of the pods that run and were not told to leave."""
    mine = named(by_name, prefix).items()
    return {name for name, pod in mine if pods.status_word(pod) == "Running"}


def until(cluster, what, condition):
    """Wait until a condition holds for the pods of the cluster; return the pods."""
    return wait(
        watch_objects(cluster.kube, WatchSpec("Pod")),
        until=lambda state: condition(state["Pod"]),
        timeout=120,
        what=what,
        about="the pods of the test",
        resume="run it again",
        describe=lambda state: ", ".join(
            f"{name} {pods.status_word(pod)}" for name, pod in state["Pod"].items()
        ),
    )["Pod"]


def began(placement, pod, state):
    """Return when a pod of this name was in a state, each time."""
    return [stay.began for stay in placement.intervals if (stay.pod, stay.state) == (pod, state)]


def test_workers_give_way_to_a_service_of_high_priority_and_come_back(
    launch, write_trainer, local_cluster, elastic_job, service
):
    limits = {"nodes": 4, "min_nodes": 1, "max_nodes": 4}
    job = kit.ElasticJob(write_trainer(WORKER), priority="low", cpu=service, name="gives-way", **limits)
    workers = {f"gives-way-worker-{index}" for index in range(4)}
    with local_cluster.watch_placement() as watch:
        run = launch(plain(job, START))
        until(local_cluster, "four workers", lambda by_name: running(by_name, "gives-way") == workers)
        local_cluster.kubectl("scale deployment test-nginx --replicas=7")
        by_name = until(
            local_cluster,
            "seven pods of the service, and workers that wait",
            lambda by_name: (
                len(running(by_name, "test-nginx")) == 7
                and sum("Insufficient cpu" in pods.why(pod) for pod in by_name.values()) == 3
            ),
        )
        (stayed,) = running(by_name, "gives-way")
        assert "not enough cpu free" in str(run.status)
        local_cluster.kubectl("scale deployment test-nginx --replicas=1")
        until(local_cluster, "four workers again", lambda by_name: running(by_name, "gives-way") == workers)
    lost = {row["pod"] for row in watch.table() if row["end"] == "preempted"}
    assert lost == workers - {stayed}
    for pod in lost:
        first, *_, again = began(watch.placement, pod, "running")
        leaving = began(watch.placement, pod, "leaving")[0]
        assert first < leaving < began(watch.placement, pod, "waiting")[-1] < again
    assert len(began(watch.placement, stayed, "running")) == 1
    assert watch.placement.losses["gives-way"], "logs were read while there were pods to read them of"
    assert watch.picture()._repr_png_().startswith(b"\x89PNG")


def test_the_number_of_workers_follows_kubectl_and_what_is_deleted_is_made_again(
    launch, write_trainer, local_cluster, elastic_job
):
    job = kit.ElasticJob(write_trainer(WORKER), nodes=1, max_nodes=2, name="scaled")
    launch(plain(job, START))
    pods = until(local_cluster, "a worker", lambda pods: running(pods, "scaled"))
    first = pods["scaled-worker-0"]["metadata"]["uid"]
    local_cluster.kubectl("scale elasticjob scaled --replicas=2")
    until(local_cluster, "two workers", lambda pods: len(running(pods, "scaled")) == 2)
    with pytest.raises(CommandFailed, match="more Worker.replicas than maxReplicas"):
        local_cluster.kubectl("scale elasticjob scaled --replicas=3")
    local_cluster.kubectl("delete pod scaled-worker-0 --wait=false")
    pods = until(
        local_cluster,
        "another worker in its place",
        lambda pods: (
            len(running(pods, "scaled")) == 2 and pods["scaled-worker-0"]["metadata"]["uid"] != first
        ),
    )
    local_cluster.kubectl("scale elasticjob scaled --replicas=1")
    until(local_cluster, "one worker", lambda pods: set(named(pods, "scaled")) == {"scaled-worker-0"})


def test_limits_that_contradict_each_other_are_refused_by_the_api_server(launch, write_trainer, elastic_job):
    job = kit.ElasticJob(write_trainer(WORKER), nodes=1, max_nodes=2, name="refused")
    with pytest.raises(LaunchRejected, match="minReplicas is more than maxReplicas"):
        launch(job.patch({"spec": {"minReplicas": 3}}))


def test_a_job_whose_worker_is_killed_again_and_again_gives_up_and_is_forgotten(
    launch, write_trainer, local_cluster, elastic_job
):
    job = kit.ElasticJob(write_trainer(WORKER), nodes=1, max_nodes=2, name="killed")
    run = launch(plain(job, "exit 137").patch({"spec": {"backoffLimit": 2, "cleanPodPolicy": "All"}}))
    with pytest.raises(kit.RunFailed, match=r"rank 0 failed first: it was killed \(SIGKILL\)"):
        run.wait(timeout=120)
    over = '{"spec": {"ttlSecondsAfterFinished": 0}}'
    local_cluster.kubectl(f"patch elasticjob killed --type=merge -p '{over}'")
    local_cluster.kubectl("wait elasticjob/killed --for=delete --timeout=120s")
