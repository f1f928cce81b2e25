"""What nodes do to a run: they are stopped, isolated, cordoned, tainted, drained; and what is said of it.

Where a node is stopped or isolated, two ranks train on two nodes, and the cluster is whole when it is back:
these tests wait for the node controller, which calls a node NotReady after 16 seconds.
"""

import contextlib

import pytest

import kitlib as kit
from kitlib.errors import KitError

from ..patience import PATIENCE, until
from .provoked import first_cause, provoke
from .ranks import at_step, containers

pytestmark = [pytest.mark.cluster, pytest.mark.namespaces]

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
AT_ONCE = {"tolerations": [UNREACHABLE | {"tolerationSeconds": 1}]}
FOREVER = 10**6
# Each by itself, so many steps at least, and on until it finds that it may end.
ALONE = """
import os, sys, time
step = 0
while step < 3 or (step < int(sys.argv[1]) and not os.path.exists("/workspace/end")):
    print(step, flush=True)
    step += 1
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster(own_cluster):
    """Three nodes, of a core each."""
    return own_cluster


@pytest.fixture(autouse=True)
def back(cluster, train):
    """Bring back the nodes that a test has left stopped or isolated, before its runs are deleted."""
    yield
    for node in [node["node"] for node in cluster.nodes() if node["status"] != "Ready"]:
        for verb in (cluster.start_node, cluster.reconnect):
            with contextlib.suppress(KitError):
                verb(node)


def node_of(run, rank):
    return next(pod["node"] for pod in run.pods() if pod["rank"] == rank)


def end(run):
    """Let the ranks end that can be reached."""
    for pod in run.pods():
        if pod["status"] == "Running":
            run.kube.execute(pod["pod"], ["touch", "/workspace/end"], container="pytorch")


def check_whole(cluster, train):
    """Every node is Ready, takes ranks, and runs nothing of before."""
    until(lambda: all(node["status"] == "Ready" for node in cluster.nodes()), "the nodes to be Ready")
    until(lambda: not any(node["spec"].get("taints") for node in cluster.kube.get_all("Node")), "no taints")
    until(lambda: not cluster.pods(), "no pod of before")
    fresh = train(cluster, steps=0, nodes=3, source=ALONE)
    assert fresh.wait(timeout=PATIENCE).phase == "Succeeded"
    assert {pod["node"] for pod in fresh.pods()} == {f"node-{index}" for index in range(3)}


def test_a_run_fails_with_the_name_of_its_stopped_node(cluster, train):
    run = train(cluster, steps=1000, pod=AT_ONCE)
    at_step(run, 3)
    node = node_of(run, 1)
    cluster.stop_node(node)
    with pytest.raises(kit.RunFailed, match=rf"node {node} \(rank 1\) does not answer") as failed:
        run.wait(timeout=PATIENCE)
    assert failed.value.rank == 1
    assert "NotReady" in {node["status"] for node in cluster.nodes()}
    cluster.start_node(node)
    run.delete()
    assert containers(cluster, run) == {}
    check_whole(cluster, train)


@pytest.mark.slow
def test_a_run_whose_node_is_cut_off_for_a_while_says_so_and_goes_on_where_it_was(cluster, train):
    run = train(cluster, steps=FOREVER, source=ALONE)
    at_step(run, 3)
    node = node_of(run, 1)
    cluster.isolate(node)
    until(lambda: "does not answer" in str(run.status), "the kit to name the node")
    assert str(run.status) == f"Running: 2 of 2 pods; rank 1: its node {node} does not answer"
    assert run.pods()[1]["why"] == f"its node {node} does not answer"
    cluster.reconnect(node)
    until(lambda: str(run.status) == "Running: 2 of 2 pods", "the kit to hear of it")
    end(run)
    assert run.wait(timeout=PATIENCE).phase == "Succeeded"
    assert [pod["restarts"] for pod in run.pods()] == [0, 0]
    lines = run.logs(rank=1).splitlines()
    assert lines == [str(number) for number in range(len(lines))]
    assert len(lines) > 50, "it went on while nobody heard of it"
    run.delete()
    check_whole(cluster, train)


@pytest.mark.slow
def test_a_job_with_retries_replaces_the_rank_of_an_isolated_node(cluster, train):
    run = train(cluster, steps=FOREVER, source=ALONE, job={"backoffLimit": 1}, pod=AT_ONCE)
    at_step(run, 3)
    node = node_of(run, 1)
    old = next(pod["pod"] for pod in run.pods() if pod["rank"] == 1)
    cluster.isolate(node)

    def replaced():
        return [
            pod for pod in run.pods() if pod["rank"] == 1 and pod["pod"] != old and pod["status"] == "Running"
        ]

    until(replaced, "a rank 1 in its place")
    assert replaced()[0]["node"] != node
    cluster.reconnect(node)
    until(lambda: old not in [pod["pod"] for pod in run.pods() if pod["status"] == "Running"], "its end")
    end(run)
    assert run.wait(timeout=PATIENCE).phase == "Succeeded"
    until(lambda: old not in [pod["pod"] for pod in run.pods()], "the old rank 1 to be gone")
    run.delete()
    check_whole(cluster, train)


PLACED = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
HALF = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "600m"}}}]}


@pytest.fixture
def provoked(cluster):
    """Provoke a row in a namespace of its own; it is deleted afterwards."""
    names = []

    def start(name, **row):
        provoke(cluster.kube, {"name": name, **row}, {})
        names.append(f"w-{name}")
        return cluster.kube.in_namespace(f"w-{name}")

    yield start
    for name in names:
        cluster.kube.delete("Namespace", name)


def named(cluster, name, kind):
    return first_cause(cluster.kube, {"name": name, "kind": kind})


def running(kube):
    return until(lambda: [pod for pod in kube.get_all("Pod") if pod["status"].get("phase") == "Running"])


def test_cordoned_and_tainted_nodes_are_named(cluster, provoked):
    cluster.kubectl("cordon node-0 node-2")
    cluster.kubectl("taint node node-1 team=blue:NoSchedule")
    try:
        provoked("placed")
        cause = named(cluster, "placed", "Cordoned")
        assert "are cordoned: node-0" in cause.what
        assert "node-1 team=blue:NoSchedule" in cause.what
        assert "kubectl uncordon" in cause.fix
    finally:
        cluster.kubectl("uncordon node-0 node-2")
        cluster.kubectl("taint node node-1 team-")


def test_a_run_that_was_preempted_says_so(cluster, provoked):
    value = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    cluster.kube.apply(value | {"metadata": {"name": "w-high"}})
    running(provoked("victim", pod=PLACED | HALF))
    provoked("bully", pod=PLACED | HALF | {"priorityClassName": "w-high"})
    assert "higher priority" in named(cluster, "victim", "Preempted").what


def test_a_run_whose_node_was_tainted_or_drained_says_so(cluster, provoked):
    running(provoked("maintained", pod=PLACED))
    cluster.kubectl("taint node node-1 maintenance=now:NoExecute")
    try:
        assert "taint NoExecute" in named(cluster, "maintained", "EvictedByTaint").what
    finally:
        cluster.kubectl("taint node node-1 maintenance-")
    running(provoked("drained", pod=PLACED))
    cluster.kubectl("drain node-1 --force --ignore-daemonsets --delete-emptydir-data")
    cluster.kubectl("uncordon node-1")
    assert "was deleted while it ran" in named(cluster, "drained", "PodDeleted").what


def test_a_pod_on_a_node_that_does_not_exist_is_lost(cluster, provoked):
    provoked("nowhere", pod={"nodeName": "node-77"})
    run_of = kit.Run(cluster.kube.in_namespace("w-nowhere"), "w-nowhere")
    assert until(lambda: run_of.why()).first.kind in ("NodeGone", "NodeMissing")


def test_a_pressure_that_a_node_reports_is_named(cluster, provoked):
    cluster.kubectl("cordon node-0 node-1 node-2")
    try:
        provoked("short")
        run_of = kit.Run(cluster.kube.in_namespace("w-short"), "w-short")
        condition = {"type": "EventLoopStalled", "status": "True", "reason": "Test", "message": "for 9 s"}
        node = cluster.kube.get("Node", "node-1")
        conditions = [*node["status"]["conditions"], condition]
        cluster.kube.patch("Node", "node-1", {"status": {"conditions": conditions}}, part="status")
        until(lambda: any("reports EventLoopStalled: for 9 s" in cause.what for cause in run_of.why().causes))
        assert "Ready, EventLoopStalled, SchedulingDisabled" in str(cluster.nodes())
    finally:
        cluster.kubectl("uncordon node-0 node-1 node-2")
