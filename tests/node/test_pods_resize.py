"""In-place resize: ``kubectl patch --subresource resize`` changes the resources of a running container."""

import json
from pathlib import Path

import pytest

from localkube.kubelet.resources.cgroups import RECORD

from .clusters import container, eventually, on_node, pod

SMALL = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
LARGE = {"requests": {"cpu": "150m", "memory": "48Mi"}, "limits": {"cpu": "400m", "memory": "128Mi"}}
# Holds 48 MiB until a file says otherwise.
HOLD = """
import os, time
held = bytearray(48 << 20)
print("held", flush=True)
while not os.path.exists("/tmp/free"):
    time.sleep(0.1)
del held
time.sleep(600)
"""


def resize(cluster, name, resources, container="main"):
    change = {"spec": {"containers": [{"name": container, "resources": resources}]}}
    cluster.kubectl("patch", "pod", name, "--subresource", "resize", "--patch", json.dumps(change))


def running(pods, resources=SMALL, **spec):
    main = {"resources": resources} | spec.pop("main", {})
    return pods.running(pod("exec sleep 600", main=main, **spec))["metadata"]["name"]


def condition(pod, kind):
    return next((row for row in pod["status"]["conditions"] if row["type"] == kind), None)


def resized(pods, name, resources):
    """Wait until a container has what it was given, and nothing more is to be done."""
    return pods.until(
        name,
        lambda pod: (
            container(pod).get("resources") == resources
            and container(pod)["allocatedResources"] == resources["requests"]
            and not condition(pod, "PodResizeInProgress")
            and not condition(pod, "PodResizePending")
        ),
    )


def limits(cluster, manifest):
    """Read the CPU limit (in cores) and the memory limit of the main container from its control group."""
    roots = [Path(path) for path in json.loads((cluster.root / RECORD).read_text())]
    groups = [group for root in roots for group in root.rglob(f"{manifest['metadata']['uid']}.main.*")]
    files = {
        path.name: path.read_text().split()
        for group in groups
        for path in group.glob("*")
        if path.name in NAMES
    }
    if "cpu.max" in files:
        quota, period = files["cpu.max"]
        return int(quota) / int(period), int(files["memory.max"][0])
    return int(files["cpu.cfs_quota_us"][0]) / 100_000, int(files["memory.limit_in_bytes"][0])


NAMES = ("cpu.max", "memory.max", "cpu.cfs_quota_us", "memory.limit_in_bytes")


@pytest.fixture
def groups(cluster):
    if not (cluster.root / RECORD).exists():
        pytest.skip("no control groups can be written here: limits by the kernel were NOT tested")


def test_a_running_container_gets_more_and_less_without_a_restart(groups, cluster, pods):
    name = running(pods)
    for resources, expected in ((LARGE, (0.4, 128 << 20)), (SMALL, (0.2, 64 << 20))):
        resize(cluster, name, resources)
        resized_pod = resized(pods, name, resources)
        assert limits(cluster, resized_pod) == expected
        assert container(resized_pod)["restartCount"] == 0
    pods.wait_for_event(name, "ResizeStarted", 'Pod resize started: {"containers":[{"name":"main"')
    pods.wait_for_event(name, "ResizeCompleted", '"generation":3}')


def test_a_container_whose_policy_says_so_is_restarted(cluster, pods):
    policy = {"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}
    name = running(pods, main=policy, restartPolicy="Always")
    cpu_alone = SMALL | {"limits": SMALL["limits"] | {"cpu": "300m"}}
    resize(cluster, name, cpu_alone)
    assert container(resized(pods, name, cpu_alone))["restartCount"] == 0
    resize(cluster, name, LARGE)
    assert container(resized(pods, name, LARGE))["restartCount"] == 1
    pods.wait_for_event(name, "Killing", "Container main resize requires restart")


def test_a_resize_beyond_the_nodes_room_waits_or_is_revoked(cluster, pods):
    node = cluster.core.read_node("node-1").status.allocatable["cpu"]
    half = f"{int(node.removesuffix('m')) * 6 // 10}m" if node.endswith("m") else f"{int(node) * 600}m"
    neighbour = running(pods, {"requests": {"cpu": half}}, **on_node(1))
    name = running(pods, {"requests": {"cpu": "10m"}}, **on_node(1))
    resize(cluster, name, {"requests": {"cpu": half}})
    waiting = pods.until(name, lambda pod: condition(pod, "PodResizePending"))
    pending = condition(waiting, "PodResizePending")
    assert (pending["status"], pending["reason"]) == ("True", "Deferred")
    assert "Node didn't have enough resource: cpu, requested: " in pending["message"]
    assert container(waiting)["allocatedResources"] == {"cpu": "10m"}
    pods.wait_for_event(name, "ResizeDeferred", "Pod resize Deferred")
    resize(cluster, name, {"requests": {"cpu": "10m"}})
    resized(pods, name, {"requests": {"cpu": "10m"}})
    resize(cluster, name, {"requests": {"cpu": half}})
    pods.until(name, lambda pod: condition(pod, "PodResizePending"))
    cluster.core.delete_namespaced_pod(neighbour, "default", grace_period_seconds=0)
    resized(pods, name, {"requests": {"cpu": half}})


def test_memory_in_use_is_not_taken_away(groups, cluster, pods):
    main = {"command": ["python", "-c", HOLD], "image": "python", "resources": LARGE}
    name = pods.running(pod(main=main))["metadata"]["name"]
    pods.wait_for_line(name, "held")
    less = LARGE | {
        "requests": {"cpu": "150m", "memory": "16Mi"},
        "limits": {"cpu": "400m", "memory": "32Mi"},
    }
    resize(cluster, name, less)
    failed = pods.until(
        name, lambda pod: (condition(pod, "PodResizeInProgress") or {}).get("reason") == "Error"
    )
    assert (
        "memory limit (33554432) below current usage" in condition(failed, "PodResizeInProgress")["message"]
    )
    cluster.kubectl("exec", name, "--", "touch", "/tmp/free")
    assert container(resized(pods, name, less))["restartCount"] == 0


def test_a_kubelet_goes_on_with_what_the_former_one_has_allocated(cluster, pods):
    name = running(pods)
    resize(cluster, name, LARGE)
    resized(pods, name, LARGE)
    kubelet = cluster.process("localkube.kubelet")
    kubelet.suspend()
    resize(cluster, name, SMALL)
    kubelet.kill()
    resized_pod = resized(pods, name, SMALL)
    assert container(resized_pod)["restartCount"] == 0
    eventually(lambda: cluster.process("localkube.kubelet").pid != kubelet.pid)
