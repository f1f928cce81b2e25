"""Device plugins by the kubelet's socket: registered from a pod, allocated to others."""

from pathlib import Path

import pytest

from localkube.kubelet.plugins import messages_pb2

from .clusters import container, eventually, on_node, pod, python

RESOURCE = "example.com/flux"
SOURCE = (Path(__file__).parent / "programs" / "device_plugin.py").read_text()


@pytest.fixture
def plugin(cluster, pods):
    """Yield the name of a pod with a device plugin on node-0, once the node has its devices."""
    paths = {
        "plugins": ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"),
        "messages": (str(Path(messages_pb2.__file__).parent), "/messages"),
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, (path, _) in paths.items()]
    mounts = [{"name": name, "mountPath": place} for name, (_, place) in paths.items()]
    volumes.append({"name": "state", "emptyDir": {}})
    mounts.append({"name": "state", "mountPath": "/state"})
    main = python(SOURCE) | {"volumeMounts": mounts}
    name = pods.running(pod(main=main, volumes=volumes, **on_node(0)))["metadata"]["name"]
    eventually(lambda: quantities(cluster), wanted=("2", "2"))
    yield name
    cluster.core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    eventually(lambda: quantities(cluster)[1], wanted="0")


def quantities(cluster, node="node-0"):
    status = cluster.core.read_node(node).status
    return (status.capacity or {}).get(RESOURCE), (status.allocatable or {}).get(RESOURCE)


def with_devices(count, script, **spec):
    main = {"resources": {"limits": {RESOURCE: str(count)}}}
    return pod(script, main=main, **spec)


def test_a_container_gets_the_variables_mounts_and_device_nodes_of_its_devices(pods, plugin):
    script = "echo $FLUX; cat /flux/capacitor; echo; head -c 3 /dev/flux | od -An -tx1; echo > /flux/new"
    made = pods.finish(with_devices(1, script))
    lines = [line.strip() for line in pods.logs(made).splitlines()]
    assert lines[:3] == ["flux-2", "1.21 GW", "00 00 00"]  # the plugin prefers its last one
    assert "Read-only" in lines[3]
    assert made["spec"]["nodeName"] == "node-0"
    (device,) = container(made)["allocatedResourcesStatus"]
    assert device == {"name": RESOURCE, "resources": [{"resourceID": "flux-2", "health": "Healthy"}]}
    assert "prepared flux-2" in pods.logs(plugin)


def test_devices_are_given_once_and_come_back(cluster, pods, plugin):
    both = pods.running(with_devices(2, "exec sleep 600"))["metadata"]["name"]
    refused = pods.finish(with_devices(1, "true", nodeName="node-0"))["status"]
    assert refused["reason"] == "UnexpectedAdmissionError"
    problem = f"requested number of devices unavailable for {RESOURCE}. Requested: 1, Available: 0"
    assert refused["message"] == f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"
    cluster.core.delete_namespaced_pod(both, "default", grace_period_seconds=0)
    pods.gone(both)
    pods.output(with_devices(2, "true"))


def test_an_unhealthy_device_is_not_given_and_shows_on_the_pod_that_has_it(cluster, pods, plugin):
    name = pods.running(with_devices(1, "exec sleep 600"))["metadata"]["name"]
    cluster.kubectl("exec", plugin, "--", "touch", "/state/sick")
    eventually(lambda: quantities(cluster), wanted=("2", "1"))
    pods.until(name, lambda pod: "'Unhealthy'" in str(container(pod).get("allocatedResourcesStatus")))
    cluster.kubectl("exec", plugin, "--", "rm", "/state/sick")
    eventually(lambda: quantities(cluster), wanted=("2", "2"))


def test_a_container_keeps_its_devices_over_its_restarts_and_the_kubelets(cluster, pods, plugin):
    script = "echo $FLUX; trap 'exit 1' TERM; while :; do sleep 0.1; done"
    name = pods.running(with_devices(1, script, restartPolicy="Always"))["metadata"]["name"]
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    eventually(lambda: cluster.process("localkube.kubelet").pid != kubelet.pid)
    eventually(lambda: quantities(cluster), wanted=("2", "2"))
    eventually(lambda: ends(cluster, name))
    pods.until(name, lambda pod: container(pod)["restartCount"] == 1 and "running" in container(pod)["state"])
    assert pods.logs(name) == "flux-2\n"
    assert pods.output(with_devices(1, "echo $FLUX")) == "flux-1\n"


def ends(cluster, name):
    """End the main process of a pod; False while the kubelet does not answer."""
    try:
        cluster.kubectl("exec", name, "--", "kill", "1")
    except AssertionError:
        return False
    return True
