"""Where pods go, and how they leave: taints, selectors, spread, priorities, drain, eviction, force."""

import time

import pytest

from .clusters import eventually, is_ready, on_node, pod, state
from .workloads import FOREVER, named, names, pods_of

GRACEFUL = "trap 'sleep 1; exit 0' TERM; echo ready to be told; sleep infinity & wait"


@pytest.fixture
def tainted(cluster):
    """Taint nodes; the taints are taken away after the test."""
    done = []

    def taint(node, words):
        cluster.kubectl("taint", "node", node, words)
        done.append((node, words.split("=")[0].split(":")[0]))

    yield taint
    for node, key in done:
        cluster.kubectl("taint", "node", node, f"{key}-")


def graceful(pods, **spec):
    """Run a pod that ends in its own way a second after it is told to; return its name."""
    name = pods.running(pod(GRACEFUL, terminationGracePeriodSeconds=30, **spec))["metadata"]["name"]
    pods.wait_for_line(name, "ready to be told")
    return name


def condition(pod, kind):
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == kind), {})


def test_a_no_execute_taint_evicts_and_says_why(pods, cluster, tainted):
    patient = {"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
    stays = pods.running(pod(FOREVER, tolerations=[patient], **on_node(1)))["metadata"]["name"]
    leaves = graceful(pods, **on_node(1))
    tainted("node-1", "gone=fishing:NoExecute")
    leaving = pods.until(leaves, lambda pod: "deletionTimestamp" in pod["metadata"])
    assert condition(leaving, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    pods.gone(leaves)
    assert is_ready(pods.until(stays, lambda pod: True))


def test_a_pod_of_high_priority_takes_the_place_of_another_which_ends_gracefully(
    pods, cluster, created_objects
):
    urgent = created_objects(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": named("urgent")}}
        | {"value": 1000}
    )
    gpus = {"main": {"resources": {"limits": {"nvidia.com/gpu": 2}}}} | on_node(0)
    low = graceful(pods, **gpus)
    high = pods.create(pod(FOREVER, priorityClassName=urgent, **gpus))
    victim = pods.until(low, lambda pod: "deletionTimestamp" in pod["metadata"])
    assert condition(victim, "DisruptionTarget")["reason"] == "PreemptionByScheduler"
    assert "running" in state(victim)
    pods.wait_for_event(low, "Preempted", "Preempted by")
    assert pods.until(high, is_ready)["spec"]["nodeName"] == "node-0"
    pods.gone(low)


def test_an_evicted_pod_ends_gracefully_and_its_condition_names_the_eviction(pods, cluster):
    name = graceful(pods)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    cluster.kubectl(
        "create", "--raw", f"/api/v1/namespaces/default/pods/{name}/eviction", "-f", "-", stdin=body
    )
    ended = pods.until(name, lambda pod: "terminated" in state(pod))
    assert condition(ended, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    assert state(ended)["terminated"]["exitCode"] == 0
    pods.gone(name)


def test_a_pod_that_is_deleted_stays_until_its_grace_period_is_over_and_no_longer(pods, cluster):
    deaf = "trap '' TERM; sleep infinity & wait"
    name = pods.running(pod(deaf, terminationGracePeriodSeconds=600))["metadata"]["name"]
    start = time.monotonic()
    cluster.kubectl("delete", "pod", name, "--grace-period=2", "--timeout=120s")
    assert time.monotonic() - start >= 2


def test_a_forced_deletion_cuts_a_graceful_one_short(pods, cluster):
    deaf = "trap '' TERM; sleep infinity & wait"
    name = pods.running(pod(deaf + "; : 76543", terminationGracePeriodSeconds=600))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--wait=false")
    pods.until(name, lambda pod: "deletionTimestamp" in pod["metadata"])
    process = next(p for p in cluster.processes() if "76543" in " ".join(p.cmdline()))
    cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--timeout=120s")
    eventually(process.is_running, expected=False)
    assert name not in names(pods_of(cluster, ""))
