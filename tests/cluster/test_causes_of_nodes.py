"""Causes that lie with nodes, each made to happen on a real cluster, and named by ``run.why()``."""

import pytest

import kitlib as kit

from ..patience import until
from .provoked import first_cause, provoke

PLACED = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
HALF = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "600m"}}}]}


@pytest.fixture
def run(own_cluster):
    """Provoke a row in a namespace of its own; it is deleted afterwards."""
    names = []

    def start(name, **row):
        provoke(own_cluster.kube, {"name": name, **row}, {})
        names.append(f"w-{name}")
        return own_cluster.kube.within(f"w-{name}")

    yield start
    for name in names:
        own_cluster.kube.delete("Namespace", name)


def named(cluster, name, kind):
    return first_cause(cluster.kube, {"name": name, "kind": kind})


def running(kube):
    return until(lambda: [pod for pod in kube.get_all("Pod") if pod["status"].get("phase") == "Running"])


def test_cordoned_and_tainted_nodes_are_named(own_cluster, run):
    own_cluster.kubectl("cordon node-0")
    own_cluster.kubectl("taint node node-1 team=blue:NoSchedule")
    try:
        run("placed")
        cause = named(own_cluster, "placed", "Cordoned")
        assert "are cordoned: node-0" in cause.what
        assert "node-1 team=blue:NoSchedule" in cause.what
        assert "kubectl uncordon" in cause.fix
    finally:
        own_cluster.kubectl("uncordon node-0")
        own_cluster.kubectl("taint node node-1 team-")


def test_a_run_that_was_preempted_says_so(own_cluster, run):
    value = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    own_cluster.kube.apply(value | {"metadata": {"name": "w-high"}})
    running(run("victim", pod=PLACED | HALF))
    run("bully", pod=PLACED | HALF | {"priorityClassName": "w-high"})
    assert "higher priority" in named(own_cluster, "victim", "Preempted").what


def test_a_run_whose_node_was_tainted_or_drained_says_so(own_cluster, run):
    running(run("maintained", pod=PLACED))
    own_cluster.kubectl("taint node node-1 maintenance=now:NoExecute")
    try:
        assert "taint NoExecute" in named(own_cluster, "maintained", "EvictedByTaint").what
    finally:
        own_cluster.kubectl("taint node node-1 maintenance-")
    running(run("drained", pod=PLACED))
    own_cluster.kubectl("drain node-1 --force --ignore-daemonsets --delete-emptydir-data")
    own_cluster.kubectl("uncordon node-1")
    assert "was deleted while it ran" in named(own_cluster, "drained", "PodDeleted").what


def test_a_pod_on_a_node_that_does_not_exist_is_lost(own_cluster, run):
    run("nowhere", pod={"nodeName": "node-77"})
    run_of = kit.Run(own_cluster.kube.within("w-nowhere"), "w-nowhere")
    assert until(lambda: run_of.why()).first.kind in ("NodeGone", "NodeMissing")


def test_a_pressure_that_a_node_reports_is_named(own_cluster, run):
    own_cluster.kubectl("cordon node-0")
    own_cluster.kubectl("cordon node-1")
    try:
        run("short")
        run_of = kit.Run(own_cluster.kube.within("w-short"), "w-short")
        condition = {"type": "EventLoopStalled", "status": "True", "reason": "Test", "message": "for 9 s"}
        node = own_cluster.kube.get("Node", "node-1")
        conditions = [*node["status"]["conditions"], condition]
        own_cluster.kube.patch("Node", "node-1", {"status": {"conditions": conditions}}, part="status")
        until(lambda: any("reports EventLoopStalled: for 9 s" in cause.what for cause in run_of.why().causes))
        assert "Ready, EventLoopStalled, SchedulingDisabled" in str(own_cluster.nodes())
    finally:
        own_cluster.kubectl("uncordon node-0")
        own_cluster.kubectl("uncordon node-1")


@pytest.mark.slow
def test_a_node_that_does_not_answer_is_named_with_its_ranks(own_cluster, run):
    running(run("lost", pod=PLACED))
    own_cluster.stop_node("node-1")
    try:
        cause = named(own_cluster, "lost", "NodeNotReady")
        assert cause.who == "node node-1 (rank 0)"
        assert "does not answer" in cause.what
        assert "overloaded" in cause.fix
    finally:
        own_cluster.start_node("node-1")
