"""Nodes that lose their power or their network: what Kubernetes sees, and what runs there meanwhile.

A cluster of these tests' own, because nodes of the shared one must not go. The tests wait for the node
controller, which calls a node NotReady after 16 seconds.
"""

import time

import psutil
import pytest
from kubernetes import watch

from .clusters import (
    PATIENCE,
    Refused,
    container,
    eventually,
    is_ready,
    localkube,
    on_node,
    pod,
    running_cluster,
    state_home,
)

UNREACHABLE = "node.kubernetes.io/unreachable"
ASLEEP_SECONDS = 18  # longer than the node controller's patience
BACK = {"stop": "start", "isolate": "reconnect"}


@pytest.fixture(scope="module")
def cluster(request):
    with (
        state_home(request.config.cache.mkdir("machines")) as home,
        running_cluster("--nodes", "3", name="power", home=home) as running,
    ):
        yield running


@pytest.fixture
def switch(cluster):
    """Switch nodes, by ``python -m localkube node``; all of them are back after the test."""
    lost_pods = {}

    def call(verb, node):
        lost_pods[node] = BACK.get(verb)
        return localkube("node", verb, cluster.name, node, home=cluster.home)["state"]

    yield call
    for node, verb in lost_pods.items():
        if verb:
            call(verb, node)


def tolerating(seconds):
    """Return the part of a PodSpec by which a pod is evicted from a silent node after so many seconds."""
    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    return {"tolerations": [toleration | {"tolerationSeconds": seconds}]}


def until_ready(cluster, node, ready):
    """Watch a node until it is Ready, or not."""
    only = f"metadata.name={node}"
    stream = watch.Watch().stream(cluster.core.list_node, field_selector=only, timeout_seconds=PATIENCE)
    for event in stream:
        if is_ready(event["raw_object"]) == ready:
            return
    raise AssertionError(f"Ready of {node} did not become {ready}")


def taints(cluster, node):
    return {taint.key for taint in cluster.core.read_node(node).spec.taints or []}


def running_with(cluster, word):
    """Return how many of the cluster's processes have ``word`` in their command, as the host sees them."""
    count = 0
    for process in cluster.processes():
        try:
            count += process.status() != psutil.STATUS_ZOMBIE and any(
                word in part for part in process.cmdline()
            )
        except psutil.NoSuchProcess:
            continue
    return count


def test_a_node_that_is_switched_off_is_silent_and_returns_with_the_pods_that_remain(cluster, pods, switch):
    stays = pods.running(pod("trap '' TERM; while :; do sleep 0.2; done # stays", restartPolicy="Always"))
    name, node = stays["metadata"]["name"], stays["spec"]["nodeName"]
    evicted = pods.create(pod("while :; do sleep 0.2; done # evicted", nodeName=node, **tolerating(1)))
    pods.until(evicted, is_ready)

    assert switch("stop", node) == "stopped"
    assert running_with(cluster, "# stays") == running_with(cluster, "# evicted") == 0
    assert cluster.core.read_namespaced_pod(name, "default").status.phase == "Running", "nobody was told"
    until_ready(cluster, node, False)
    eventually(lambda: UNREACHABLE in taints(cluster, node))
    pods.until(evicted, lambda item: item["metadata"].get("deletionTimestamp"))

    assert switch("start", node) == "running"
    until_ready(cluster, node, True)
    pods.gone(evicted)
    again = pods.until(name, lambda item: is_ready(item) and container(item)["restartCount"] == 1)
    assert again["metadata"]["uid"] == stays["metadata"]["uid"]
    assert container(again)["lastState"]["terminated"]["exitCode"] == 137
    assert running_with(cluster, "# evicted") == 0
    eventually(lambda: taints(cluster, node), expected=set())


def test_volumes_in_memory_are_empty_when_the_power_is_back_and_those_on_disk_are_not(cluster, pods, switch):
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    script = "echo found: $(ls /memory) $(ls /disk); touch /memory/ram /disk/disk; echo up; exec sleep 600"
    manifest = pod(script, main={"volumeMounts": mounts}, volumes=volumes, restartPolicy="Always")
    before = pods.running(manifest)
    name, node = before["metadata"]["name"], before["spec"]["nodeName"]
    pods.wait_for_line(name, "up")
    switch("stop", node)
    switch("start", node)
    pods.until(name, lambda item: is_ready(item) and container(item)["restartCount"] == 1)
    pods.wait_for_line(name, "up")
    assert pods.logs(name).splitlines()[0] == "found: disk"
    for place in ("writable", "termination"):
        left = cluster.root / "pods" / before["metadata"]["uid"] / place
        eventually(lambda left=left: [path.name for path in left.iterdir()], expected=["main.1"])


@pytest.mark.slow
@pytest.mark.namespaces
def test_the_pods_of_a_node_that_is_cut_off_run_on_among_themselves_and_end_when_it_is_healed(
    cluster, pods, switch
):
    serve = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080)"
    server = pods.running(
        pod(main={"image": "python", "command": ["python", "-c", serve]}, **on_node(0), **tolerating(1))
    )
    address = server["status"]["podIP"]
    ask = (
        "import time, urllib.request\n"
        "while True:\n"
        "    try:\n"
        f"        print(urllib.request.urlopen('http://{address}:8080', timeout=1).status, flush=True)\n"
        "    except OSError as error:\n"
        "        print('unreachable', flush=True)\n"
        "    time.sleep(0.2)\n"
    )
    main = {"image": "python", "command": ["python", "-c", ask]}
    near = pods.running(pod(main=main, **on_node(0)))
    progress = pods.running(pod(main=main, **on_node(1)))
    pods.wait_for_line(progress["metadata"]["name"], "200")

    assert switch("isolate", "node-0") == "isolated"
    pods.wait_for_line(progress["metadata"]["name"], "unreachable")
    until_ready(cluster, "node-0", False)
    pods.until(server["metadata"]["name"], lambda item: item["metadata"].get("deletionTimestamp"))
    cluster.process("localkube.kubelet").kill()
    eventually(lambda: running_with(cluster, "localkube.kubelet"))
    assert running_with(cluster, "SimpleHTTPRequestHandler") >= 1, "nobody could tell it to end"

    assert switch("reconnect", "node-0") == "running"
    pods.gone(server["metadata"]["name"])
    assert running_with(cluster, "SimpleHTTPRequestHandler") == 0
    until_ready(cluster, "node-0", True)
    item = pods.until(near["metadata"]["name"], is_ready)
    assert container(item)["restartCount"] == 0
    pods.wait_for_line(near["metadata"]["name"], "unreachable")
    lines = pods.logs(near).splitlines()
    assert lines.index("unreachable") > 40, "it reached its neighbour all the time, until that ended"


def test_what_was_switched_off_stays_off_when_the_kubelet_is_killed(cluster, switch):
    switch("stop", "node-2")
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    kubelet.wait()
    eventually(lambda: running_with(cluster, "localkube.kubelet"))
    with pytest.raises(Refused, match="the node is stopped"):
        localkube("node", "isolate", cluster.name, "node-2", home=cluster.home)
    assert switch("start", "node-2") == "running"


def test_a_node_that_is_not_there_is_refused_with_those_that_are(cluster):
    with pytest.raises(Refused, match="node-0, node-1, node-2"):
        localkube("node", "stop", cluster.name, "node-9", home=cluster.home)


@pytest.mark.slow
def test_a_cluster_that_slept_as_a_laptop_does_goes_on_without_evicting_anybody(cluster, pods):
    name = pods.running(pod("sleep 600", restartPolicy="Always", **tolerating(10)))["metadata"]["name"]
    asleep = cluster.processes()
    for process in asleep:
        process.suspend()
    time.sleep(ASLEEP_SECONDS)  # nothing can be watched of what sleeps
    for process in reversed(asleep):
        process.resume()
    for index in range(3):
        until_ready(cluster, f"node-{index}", True)
        eventually(lambda node=f"node-{index}": taints(cluster, node), expected=set())
    after = pods.until(name, is_ready)
    assert container(after)["restartCount"] == 0
    assert not after["metadata"].get("deletionTimestamp")
