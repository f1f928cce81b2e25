"""A claim is mounted when it is bound to a volume that is bound to it, as both sides say."""

import pytest

from localkube.errors import ApiError
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.volumes.persistent_volume import ClaimResolver

POD = {"metadata": {"name": "web", "namespace": "mine", "uid": "7"}, "spec": {"nodeName": "node-0"}}
SPEC = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
OWN = {"namespace": "mine", "name": "data", "uid": "1"}
DELETED = OWN | {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def claim(metadata=OWN, *, phase="Bound", volume="pv", storage="standard"):
    return {
        "metadata": metadata,
        "spec": {"volumeName": volume, "storageClassName": storage},
        "status": {"phase": phase},
    }


def volume(path, *, bound_to=OWN, storage="standard"):
    spec = {"claimRef": bound_to, "storageClassName": storage, "hostPath": {"path": str(path)}}
    return {"metadata": {"name": "pv"}, "spec": spec}


async def locate(claim, volume, *, pod=POD):
    class Node:
        async def get(self, path):
            objects = {
                "/api/v1/namespaces/mine/persistentvolumeclaims/data": claim,
                "/api/v1/persistentvolumes/pv": volume,
            }
            if path not in objects:
                raise ApiError(404, "NotFound", path)
            return objects[path]

    nodes = {"node-0": Node()}
    return await ClaimResolver(nodes.__getitem__).locate(pod, SPEC)


async def test_a_bound_claim_is_the_directory_of_its_volume(tmp_path):
    assert (await locate(claim(), volume(tmp_path))).path == tmp_path


@pytest.mark.parametrize(
    ("claim_name", "changes", "message"),
    [
        (claim(phase="Pending"), {}, "not bound yet"),
        (claim(phase="Lost"), {}, "not bound yet"),
        (claim(volume=""), {}, "not bound yet"),
        (claim(DELETED), {}, "being deleted"),
        (claim(volume="other"), {}, "is gone"),
        (claim(storage="fast"), {}, "another storage class"),
        (claim(), {"bound_to": None}, "bound to another claim"),
        (claim(), {"bound_to": OWN | {"uid": "2"}}, "bound to another claim"),
        (claim(), {"bound_to": OWN | {"namespace": "attendee-bob"}}, "bound to another claim"),
        (claim(), {"bound_to": OWN | {"name": "other"}}, "bound to another claim"),
    ],
)
async def test_a_claim_whose_binding_is_not_both_sides_is_not_mounted(tmp_path, claim_name, changes, message):
    with pytest.raises(ConfigError, match=message):
        await locate(claim_name, volume(tmp_path, **changes))


@pytest.mark.parametrize("name", ["../../persistentvolumes/pv", "pv/../other", "..", "%2e%2e"])
async def test_a_claim_that_names_a_path_for_its_volume_leads_nowhere(tmp_path, name):
    with pytest.raises(ApiError, match="invalid resource name"):
        await locate(claim(volume=name), volume(tmp_path))


async def test_a_pod_that_has_run_keeps_its_claim_while_that_is_being_deleted(tmp_path):
    status = {"containerStatuses": [{"containerID": "trainyard://7.main.0"}]}
    assert (await locate(claim(DELETED), volume(tmp_path), pod=POD | {"status": status})).path == tmp_path


async def test_a_claim_is_no_block_device(tmp_path):
    container = {"name": "main", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}
    pod = POD | {"spec": POD["spec"] | {"containers": [container]}}
    with pytest.raises(ConfigError, match="has volumeMode Filesystem, but is specified in volumeDevices"):
        await locate(claim(), volume(tmp_path), pod=pod)
