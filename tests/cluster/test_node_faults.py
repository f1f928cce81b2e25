"""A node that is stopped or isolated from the network, while two ranks train on two nodes.

What the kit says of it, what becomes of the Job, and that the cluster is whole when the node is back. Each
test waits for the node controller, which calls a node NotReady after 16 seconds.
"""

import contextlib
import secrets

import pytest

import kitlib as kit
from kitlib.errors import KitError

from ..patience import PATIENCE, until
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
def cluster(state_home):
    name = f"faulty-{secrets.token_hex(3)}"
    try:
        yield kit.create_cluster("local", name=name, nodes=3, warm=False)
    finally:
        kit.clusters.LocalCluster(name).delete()


@pytest.fixture(autouse=True)
def back(cluster, train):
    """Bring back the nodes that a test has left stopped or isolated, before its runs are deleted."""
    yield
    for node in [node["node"] for node in cluster.nodes()]:
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


def test_a_run_whose_node_is_switched_off_fails_with_the_node_named_and_the_cluster_is_whole_again(
    cluster, train
):
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
def test_a_job_that_may_replaces_the_rank_of_a_node_that_is_cut_off_and_the_old_one_ends(cluster, train):
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
