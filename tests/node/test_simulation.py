"""Nodes that are only said to be there: what lands on them, what it reports, and how they come and go."""

import json

import psutil
import pytest

from .clusters import Refused, eventually, localkube, pod

TOLERATED = {
    "nodeSelector": {"trainyard/simulated": "true"},
    "tolerations": [{"key": "trainyard/simulated", "operator": "Exists"}],
}
TAINT = {"key": "trainyard/simulated", "value": "true", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def simulate(cluster):
    """Set how many simulated nodes there are; none is left after the module."""

    def call(count):
        return localkube("simulate", cluster.name, str(count), home=cluster.home)["simulated"]

    yield call
    call(0)


def simulated(cluster):
    """Return the simulated nodes by name, as the API has them."""
    items = json.loads(cluster.kubectl("get", "nodes", "-l", "trainyard/simulated", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item for item in items}


def ready(cluster):
    conditions = [node["status"]["conditions"][0] for node in simulated(cluster).values()]
    return sum((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def simulators(cluster):
    count = 0
    for process in cluster.processes():
        try:
            count += "localkube.kubelet.nodes.simulator" in process.cmdline()
        except psutil.NoSuchProcess:  # or a zombie
            continue
    return count


def test_simulated_nodes_are_ready_and_marked_and_stay_so_when_the_kubelet_is_killed(cluster, simulate):
    assert simulate(20) == 20
    assert ready(cluster) == 20
    # A new node has a taint of the control plane's own until that has seen it Ready.
    eventually(
        lambda: [node["spec"]["taints"] for node in simulated(cluster).values()], expected=[[TAINT]] * 20
    )
    cluster.process("localkube.kubelet").kill()
    eventually(lambda: simulators(cluster), expected=1)
    assert simulate(5) == 5
    assert sorted(simulated(cluster)) == [f"simulated-{index}" for index in range(5)]


def test_a_pod_that_tolerates_it_runs_there_as_far_as_anybody_can_tell_and_others_stay_away(
    cluster, simulate, pods
):
    simulate(5)
    simulated = pods.running(pod("exit 1", **TOLERATED))
    assert simulated["spec"]["nodeName"].startswith("simulated-")
    assert simulated["status"]["podIP"]
    away = pods.running(pod("sleep 60"))
    assert not away["spec"]["nodeName"].startswith("simulated-")
    with pytest.raises(AssertionError, match="no preferred addresses"):
        cluster.kubectl("logs", simulated["metadata"]["name"])
    cluster.kubectl("delete", "pod", simulated["metadata"]["name"], "--timeout=120s")


def test_what_the_node_controller_says_of_silent_nodes_and_their_pods_is_contradicted(
    cluster, simulate, pods
):
    simulate(5)
    simulated = pods.running(pod("true", **TOLERATED))
    conditions = {
        "type": "Ready",
        "status": "False",
        "reason": "NodeStatusNeverUpdated",
        "message": "said by a test",
    }
    for kind, name in (("node", simulated["spec"]["nodeName"]), ("pod", simulated["metadata"]["name"])):
        patch = json.dumps({"status": {"conditions": [conditions]}})
        cluster.kubectl("patch", kind, name, "--subresource=status", f"--patch={patch}")
        cluster.kubectl("wait", "--for=condition=Ready", kind, name, "--timeout=120s")


def test_a_simulated_pod_of_a_job_succeeds(cluster, simulate):
    simulate(5)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pretended"},
        "spec": {
            "completions": 12,
            "parallelism": 12,
            "template": {
                "metadata": {"annotations": {"trainyard/simulated-seconds": "0.5"}},
                "spec": pod("true", **TOLERATED)["spec"],
            },
        },
    }
    try:
        cluster.kubectl("create", "-f", "-", stdin=job)
        cluster.kubectl("wait", "--for=condition=Complete", "job/pretended", "--timeout=120s")
    finally:
        cluster.kubectl("delete", "job", "pretended", "--ignore-not-found")


def test_too_many_are_refused(cluster):
    with pytest.raises(Refused, match="0 to 5000"):
        localkube("simulate", cluster.name, "5001", home=cluster.home)
