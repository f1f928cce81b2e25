"""Device plugins and DRA drivers: registered from a pod, their devices allocated to others."""

from pathlib import Path

import pytest

from localkube.kubelet.plugins import messages_pb2

from ..rows import slow
from .clusters import container, eventually, on_node, pod, python

RESOURCE, DRIVER = "example.com/flux", "flux.example.com"
SOURCE = (Path(__file__).parent / "programs" / "device_plugin.py").read_text()


@pytest.fixture
def plugin(cluster, pods):
    """Yield the name of a pod with a device plugin on node-0, once the node has its devices."""
    paths = {
        "plugins": ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"),
        "registry": ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins_registry"),
        "drivers": ("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins"),
        "cdi": ("/var/run/cdi", "/var/run/cdi"),
        "messages": (str(Path(messages_pb2.__file__).parent), "/messages"),
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, (path, _) in paths.items()]
    mounts = [{"name": name, "mountPath": place} for name, (_, place) in paths.items()]
    volumes.append({"name": "state", "emptyDir": {}})
    mounts.append({"name": "state", "mountPath": "/state"})
    main = python(SOURCE) | {"volumeMounts": mounts}
    name = pods.running(pod(main=main, volumes=volumes, **on_node(0)))["metadata"]["name"]
    eventually(lambda: quantities(cluster), expected=("2", "2"))
    yield name
    cluster.kubectl("delete", "pod", name, "--ignore-not-found", "--force", "--grace-period=0")
    eventually(lambda: quantities(cluster)[1], expected="0")


def quantities(cluster, node="node-0"):
    status = cluster.core.read_node(node).status
    return (status.capacity or {}).get(RESOURCE), (status.allocatable or {}).get(RESOURCE)


def with_devices(count, script, **spec):
    main = {"resources": {"limits": {RESOURCE: str(count)}}}
    return pod(script, main=main, **spec)


def test_a_container_gets_the_variables_mounts_and_device_nodes_of_its_devices(pods, plugin):
    script = "echo $FLUX; cat /flux/capacitor; echo; head -c 3 /dev/flux | od -An -tx1; echo > /flux/new"
    finished = pods.finish(with_devices(1, script))
    lines = [line.strip() for line in pods.logs(finished).splitlines()]
    assert lines[:3] == ["flux-2", "1.21 GW", "00 00 00"]  # the plugin prefers its last one
    assert "Read-only" in lines[3]
    assert finished["spec"]["nodeName"] == "node-0"
    (device,) = container(finished)["allocatedResourcesStatus"]
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
    eventually(lambda: quantities(cluster), expected=("2", "1"))
    pods.until(name, lambda pod: "'Unhealthy'" in str(container(pod).get("allocatedResourcesStatus")))
    cluster.kubectl("exec", plugin, "--", "rm", "/state/sick")
    eventually(lambda: quantities(cluster), expected=("2", "2"))


def test_a_container_keeps_its_devices_over_its_restarts_and_the_kubelets(cluster, pods, plugin):
    script = "echo $FLUX; trap 'exit 1' TERM; while :; do sleep 0.1; done"
    name = pods.running(with_devices(1, script, restartPolicy="Always"))["metadata"]["name"]
    cluster.restart_kubelet()
    eventually(lambda: quantities(cluster), expected=("2", "2"))
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


@pytest.fixture
def claims(created_objects):
    """Two devices of the plugin's DRA driver on node-0, a claim of both, and a template of such claims."""
    api, name = {"apiVersion": "resource.k8s.io/v1"}, {"metadata": {"name": "parts"}}
    requests = [{"name": request, "exactly": {"deviceClassName": "parts"}} for request in "ab"]
    spec = {"spec": {"devices": {"requests": requests}}}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    devices = {"pool": pool, "devices": [{"name": device} for device in "abcd"]}
    created_objects({**api, "kind": "DeviceClass", **name, "spec": {}})
    created_objects(
        {**api, "kind": "ResourceSlice", **name, "spec": {"driver": DRIVER, "nodeName": "node-0", **devices}}
    )
    created_objects({**api, "kind": "ResourceClaim", **name, **spec})
    created_objects({**api, "kind": "ResourceClaimTemplate", **name, "spec": spec})


def with_claim(script, source, **claim):
    main = {"resources": {"claims": [{"name": "mine", **claim}]}}
    return pod(script, main=main, resourceClaims=[{"name": "mine", source: "parts"}])


@pytest.mark.parametrize("within_a_minute", [False, *slow(True)])
def test_a_claim_is_prepared_once_for_its_pods_and_ends_with_the_last(
    cluster, pods, plugin, claims, within_a_minute
):
    script = "echo parts: $PART_a $PART_b; exec sleep 600"
    first = pods.running(with_claim(script, "resourceClaimName", request="a"))
    pods.wait_for_line(first["metadata"]["name"], "parts: a")
    cluster.restart_kubelet()
    second = pods.running(with_claim(script, "resourceClaimName"))
    pods.wait_for_line(second["metadata"]["name"], "parts: a b")
    (devices,) = container(second)["allocatedResourcesStatus"]
    assert [device["resourceID"] for device in devices["resources"]] == [f"{DRIVER}/part={n}" for n in "ab"]
    first, second = first["metadata"]["name"], second["metadata"]["name"]
    cluster.core.delete_namespaced_pod(first, "default", grace_period_seconds=1)
    pods.gone(first)
    assert "unprepare parts" not in pods.logs(plugin)
    cluster.kubectl("exec", plugin, "--", "touch", "/state/broken")
    cluster.core.delete_namespaced_pod(second, "default", grace_period_seconds=1)
    pods.wait_for_event(
        second, "FailedSync", "NodeUnprepareResources failed for ResourceClaim parts: no flux"
    )
    cluster.kubectl("exec", plugin, "--", "rm", "/state/broken")
    pods.gone(second)
    if within_a_minute:  # the kubelet looks for claims that are left so often
        eventually(lambda: pods.logs(plugin).splitlines()[-1].strip(), expected="unprepare parts")
    calls = [line.split()[0] for line in pods.logs(plugin).splitlines() if "parts" in line]
    assert calls == ["prepare", *["unprepare"] * (len(calls) - 1)]


def test_a_claim_that_its_driver_cannot_prepare_holds_the_pod_until_it_can(cluster, pods, plugin, claims):
    cluster.kubectl("exec", plugin, "--", "touch", "/state/broken")
    name = pods.create(with_claim("echo $PART_a $PART_b", "resourceClaimTemplateName"))
    failed = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for"
    pods.wait_for_event(name, "FailedPrepareDynamicResources", failed)
    assert pods.until(name, bool)["status"]["phase"] == "Pending"
    cluster.kubectl("exec", plugin, "--", "rm", "/state/broken")
    pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert pods.logs(name) == "a b\n"


@pytest.mark.slow
def test_devices_of_a_driver_that_was_killed_are_not_offered_any_more(cluster, pods, plugin, claims):
    name = pods.create(with_claim("echo $PART_a", "resourceClaimTemplateName"))
    pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert slices(cluster) == {DRIVER}
    cluster.core.delete_namespaced_pod(plugin, "default", grace_period_seconds=0)
    eventually(lambda: slices(cluster), expected=set())


def slices(cluster):
    drivers = "jsonpath={.items[?(@.spec.nodeName=='node-0')].spec.driver}"
    return set(cluster.kubectl("get", "resourceslices", "-o", drivers).split())
