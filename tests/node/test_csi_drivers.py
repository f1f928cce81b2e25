"""CSI drivers by the kubelet's registration socket, with a driver that mounts in a privileged pod."""

import json
from pathlib import Path

import pytest
from kubernetes import client

from localkube.kubelet.plugins import messages_pb2

from .clusters import eventually, is_ready, on_node, pod, python

NAME = "test.csi.example.com"
SOURCE = (Path(__file__).parent / "programs" / "csi_driver.py").read_text()
PLACES = ("plugins_registry", "plugins", "pods")


@pytest.fixture
def storage(cluster):
    return client.StorageV1Api(cluster._api)


@pytest.fixture
def driver(cluster, pods, storage):
    """Yield the name of a pod with a driver on node-1, once the node has registered it."""
    modes = ["Persistent", "Ephemeral"]
    spec = {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": modes}
    storage.create_csi_driver({"metadata": {"name": NAME}, "spec": spec})
    volumes = [
        {"name": each.replace("_", "-"), "hostPath": {"path": f"/var/lib/kubelet/{each}"}} for each in PLACES
    ]
    mounts = [
        {
            "name": each.replace("_", "-"),
            "mountPath": f"/var/lib/kubelet/{each}",
            "mountPropagation": "Bidirectional",
        }
        for each in PLACES
    ]
    messages = str(Path(messages_pb2.__file__).parent)
    volumes += [{"name": "messages", "hostPath": {"path": messages}}]
    mounts += [{"name": "messages", "mountPath": "/messages"}]
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    main = python(SOURCE) | {
        "volumeMounts": mounts,
        "env": [node],
        "securityContext": {"privileged": True},
    }
    name = pods.running(pod(main=main, volumes=volumes, **on_node(1)))["metadata"]["name"]
    try:
        pods.wait_for_line(name, "registered True ")
        yield name
    finally:
        cluster.kubectl("delete", "pod", name, "--ignore-not-found")
        storage.delete_csi_driver(NAME)


@pytest.fixture
def claim(cluster, driver):
    """Make claims of volumes of the driver; both are deleted after the test."""
    made = []

    def make(name, **attributes):
        source = {"driver": NAME, "volumeHandle": f"handle-{name}", "volumeAttributes": attributes}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = common | {"capacity": {"storage": "1Gi"}, "csi": source}
        volume["claimRef"] = {"namespace": "default", "name": name}
        cluster.core.create_persistent_volume({"metadata": {"name": name}, "spec": volume})
        wanted = common | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
        cluster.core.create_namespaced_persistent_volume_claim(
            "default", {"metadata": {"name": name}, "spec": wanted}
        )
        made.append(name)
        return {"persistentVolumeClaim": {"claimName": name}}

    yield make
    for name in made:
        cluster.core.delete_namespaced_persistent_volume_claim(name, "default")
        cluster.core.delete_persistent_volume(name)


def with_volume(volume, script, **spec):
    main = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return pod(script, main=main, volumes=[{"name": "v"} | volume], **on_node(1), **spec)


def inline(**attributes):
    return {"csi": {"driver": NAME, "volumeAttributes": attributes}}


def calls(pods, driver, handle):
    """The calls for a volume, by the driver's log; none while the kubelet does not answer."""
    try:
        pods.logs(driver)
    except client.ApiException:
        return [""]
    return [line.split()[0] for line in pods.logs(driver).splitlines() if line.endswith(f" {handle}")]


def test_a_driver_is_in_the_nodes_objects(cluster, storage, driver):
    (found,) = storage.read_csi_node("node-1").spec.drivers
    assert (found.name, found.node_id, found.topology_keys) == (NAME, "id-of-node-1", ["topology.test/rack"])
    assert found.allocatable.count == 9
    metadata = cluster.core.read_node("node-1").metadata
    assert metadata.labels["topology.test/rack"] == "7"
    assert json.loads(metadata.annotations["csi.volume.kubernetes.io/nodeid"]) == {NAME: "id-of-node-1"}
    cluster.core.delete_namespaced_pod(driver, "default")
    eventually(lambda: NAME in cluster.kubectl("get", "csinode", "node-1", "-o", "yaml"), wanted=False)


def test_a_claims_volume_is_staged_and_published_and_what_it_holds_stays(cluster, pods, driver, claim):
    volume = claim("shared")
    pods.output(with_volume(volume, "echo kept > /v/file; mkdir /v/folder"))
    name = pods.running(with_volume(volume, "exec sleep 600"))["metadata"]["name"]
    assert pods.output(with_volume(volume, "cat /v/file; ls -d /v/folder")) == "kept\n/v/folder\n"
    assert "unstage" not in calls(pods, driver, "handle-shared")
    cluster.core.delete_namespaced_pod(name, "default")
    pods.gone(name)
    for each in pods._names:
        if each != driver:
            cluster.kubectl("delete", "pod", each, "--ignore-not-found", "--grace-period=0", "--force")
    eventually(lambda: calls(pods, driver, "handle-shared")[-1], wanted="unstage")


def test_a_volume_in_a_pod_lives_and_ends_with_it(cluster, pods, driver):
    name = pods.running(with_volume(inline(colour="red"), "exec sleep 600"))["metadata"]["name"]
    context = json.loads(cluster.kubectl("exec", name, "--", "cat", "/v/context.json"))
    assert context["colour"] == "red"
    assert context["csi.storage.k8s.io/pod.name"] == name
    assert context["csi.storage.k8s.io/ephemeral"] == "true"
    cluster.core.delete_namespaced_pod(name, "default")
    eventually(lambda: "\nunpublish csi-" in pods.logs(driver))


def test_a_file_system_that_a_driver_mounts_reaches_the_pod(pods, driver):
    assert pods.output(with_volume(inline(kind="tmpfs"), "stat -f -c %T /v")) == "tmpfs\n"


def test_a_volume_survives_the_kubelet(cluster, pods, driver, claim):
    name = pods.running(with_volume(claim("lasting"), "exec sleep 600"))["metadata"]["name"]
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    eventually(lambda: cluster.process("localkube.kubelet").pid != kubelet.pid)
    cluster.core.delete_namespaced_pod(name, "default")
    pods.wait_for_event(name, "Killing", "Stopping container main")
    eventually(lambda: calls(pods, driver, "handle-lasting")[-1], wanted="unstage")


def test_a_volume_that_has_to_be_attached_is_waited_for(cluster, pods, storage, driver, claim):
    storage.delete_csi_driver(NAME)
    storage.create_csi_driver({"metadata": {"name": NAME}, "spec": {"attachRequired": True}})
    name = pods.create(with_volume(claim("remote"), "exec sleep 600"))
    pods.wait_for_event(name, "FailedMount", "volume handle-remote is not attached to the node yet")
    (attachment,) = storage.list_volume_attachment().items
    assert (attachment.spec.attacher, attachment.spec.node_name) == (NAME, "node-1")
    status = {"attached": True, "attachmentMetadata": {"device": "/dev/remote"}}
    storage.patch_volume_attachment_status(attachment.metadata.name, {"status": status})
    pods.until(name, is_ready)


def test_what_a_driver_refuses_is_an_event(pods, driver):
    name = pods.create(with_volume(inline(refuse="no disk"), "true"))
    pods.wait_for_event(name, "FailedMount", "no disk")


def test_a_pod_waits_for_a_driver_that_is_not_there(pods):
    name = pods.create(with_volume({"csi": {"driver": "nowhere.example.com"}}, "true"))
    words = "driver name nowhere.example.com not found in the list of registered CSI drivers"
    pods.wait_for_event(name, "FailedMount", words)
