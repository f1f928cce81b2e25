"""Pods that take more disk than they may are evicted, as the kubelet does it."""

import pytest

from .clusters import container, eventually, pod

FILL = "dd if=/dev/zero of={path} bs=1M count=8 2>/dev/null; exec sleep 600"


def evicted(pods, manifest):
    """Return the status of a pod that must be evicted."""
    status = pods.finish(manifest)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted"), status
    return status


def events(cluster, name):
    found = cluster.core.list_namespaced_event("default", field_selector=f"involvedObject.name={name}").items
    return {(event.type, event.reason, event.message) for event in found}


def test_a_pod_whose_empty_dir_outgrows_its_limit_is_evicted(cluster, pods):
    manifest = pod(FILL.format(path="/scratch/file"), name="outgrown")
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "4Mi"}}]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    message = 'Usage of EmptyDir volume "scratch" exceeds the limit "4Mi". '
    assert evicted(pods, manifest)["message"] == message
    eventually(lambda: ("Warning", "Evicted", message) in events(cluster, "outgrown"))


def test_a_container_that_writes_too_much_outside_of_volumes_is_evicted(pods):
    limits = {"resources": {"limits": {"ephemeral-storage": "4Mi"}}}
    status = evicted(pods, pod(FILL.format(path="/tmp/file"), main=limits))
    assert "ephemeral local storage usage exceeds the total limit of containers 4Mi" in status["message"]


def test_the_places_that_a_container_writes_to_are_on_disk_and_new_for_each_run(cluster, pods):
    places = "/tmp /run /var/tmp"
    script = (
        f"cd /; stat -f -c %T {places}; ls -A /tmp /var/tmp; touch /tmp/left /run/left /var/tmp/left; exit 1"
    )
    name = pods.create(pod(script, restartPolicy="OnFailure"))
    made = pods.until(name, lambda pod: container(pod)["restartCount"] > 0)
    first = pods.logs(name, previous=True)
    assert "tmpfs" not in first
    eventually(lambda: pods.logs(name), wanted=first)  # else something is left of the first run
    written = cluster.root / "pods" / made["metadata"]["uid"] / "writable"
    eventually(lambda: len(list(written.iterdir())), wanted=0)


@pytest.mark.namespaces
def test_everybody_in_a_container_may_write_to_them(pods):
    assert pods.output(pod("stat -c %a /tmp /run /var/tmp")).split() == ["1777"] * 3


def test_nodes_offer_their_disk(cluster):
    for node in cluster.core.list_node().items:
        assert node.status.allocatable["ephemeral-storage"].endswith("Ki")
