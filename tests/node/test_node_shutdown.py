"""A node that shuts down: its pods end first, ordinary ones before critical ones."""

import concurrent.futures

import pytest

from .clusters import container, eventually, localkube, on_node, pod

SAYS_WHEN = "trap 'sleep 1; date +%s.%N; exit 0' TERM; while :; do sleep 0.05; done"
MESSAGE = "Pod was terminated in response to imminent node shutdown."


def switch(cluster, verb):
    return localkube("node", verb, cluster.name, "node-1", home=cluster.home)["state"]


def ready(cluster):
    conditions = cluster.core.read_node("node-1").status.conditions
    return next(condition for condition in conditions if condition.type == "Ready").status == "True"


@pytest.fixture
def shut_down(cluster):
    """Shut node-1 down; it starts again after the test."""
    yield lambda: switch(cluster, "shutdown")
    switch(cluster, "start")
    eventually(lambda: ready(cluster))


def test_pods_end_within_their_grace_period_critical_ones_last(cluster, pods, shut_down):
    spec = on_node(1) | {"terminationGracePeriodSeconds": 20, "restartPolicy": "Always"}
    critical = pods.running(pod(SAYS_WHEN, priorityClassName="system-node-critical", **spec))
    ordinary = pods.running(pod(SAYS_WHEN, **spec))
    other_pod = pods.running(pod("exec sleep 600", **on_node(0)))["metadata"]["name"]
    assert shut_down() == "stopped"
    ended = []
    for item in (ordinary, critical):
        failed_pod = pods.until(item["metadata"]["name"], lambda pod: pod["status"]["phase"] == "Failed")
        status = failed_pod["status"]
        assert (status["reason"], status["message"]) == ("Terminated", MESSAGE)
        (disruption,) = [row for row in status["conditions"] if row["type"] == "DisruptionTarget"]
        assert (disruption["reason"], disruption["message"]) == ("TerminationByKubelet", MESSAGE)
        assert container(failed_pod)["state"]["terminated"]["exitCode"] == 0
        ended.append(container(failed_pod)["state"]["terminated"]["finishedAt"])
    assert ended[0] < ended[1]
    assert pods.until(other_pod, bool)["status"]["phase"] == "Running"
    assert not ready(cluster)


def test_a_node_that_shuts_down_admits_no_pods(cluster, pods, shut_down):
    pods.running(pod("trap 'sleep 4' TERM; sleep 600 & wait", **on_node(1), terminationGracePeriodSeconds=20))
    with concurrent.futures.ThreadPoolExecutor() as threads:
        off = threads.submit(shut_down)
        eventually(lambda: ready(cluster), expected=False)
        late = pods.finish(pod("true", nodeName="node-1"))["status"]
        off.result()
    assert late["reason"] == "NodeShutdown"
    assert late["message"] == "Pod was rejected: Pod was rejected as the node is shutting down."
