"""Which claims get a volume, and what that volume says."""

from pathlib import Path

import pytest

from localkube.kubelet.volumes.provisioner import (
    MADE_BY,
    PROVISIONER,
    ProvisioningError,
    is_ours,
    volume_for,
    wants_more,
    wants_volume,
)

ASKED = {"volume.kubernetes.io/storage-provisioner": PROVISIONER}
CLASS = {"metadata": {"name": "standard"}, "reclaimPolicy": "Retain"}


def claim(*, annotations=ASKED, metadata=None, status=None, **spec):
    resources = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {
            "namespace": "n",
            "name": "data",
            "uid": "u",
            "annotations": annotations,
            **(metadata or {}),
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": resources,
            "storageClassName": "standard",
            **spec,
        },
        "status": status or {"phase": "Pending"},
    }


def test_a_volume_is_made_when_the_controller_manager_asks_for_it():
    assert wants_volume(claim())
    assert not wants_volume(claim(annotations={}))
    assert not wants_volume(
        claim(annotations={"volume.kubernetes.io/storage-provisioner": "ebs.csi.aws.com"})
    )
    assert not wants_volume(claim(volumeName="pvc-u"))
    assert not wants_volume(claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))


def test_a_volume_is_promised_to_its_claim():
    volume = volume_for(claim(), CLASS, Path("/volumes/pvc-u"))
    assert volume["metadata"]["name"] == "pvc-u"
    assert volume["metadata"]["annotations"] == {MADE_BY: PROVISIONER}
    assert volume["spec"] == {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "standard",
        "volumeMode": "Filesystem",
        "hostPath": {"path": "/volumes/pvc-u", "type": "Directory"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "n",
            "name": "data",
            "uid": "u",
        },
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"volumeMode": "Block"}, "use Filesystem"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}, "copy the files"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "leave the selector out"),
    ],
)
def test_what_a_directory_cannot_be_is_refused(spec, message):
    with pytest.raises(ProvisioningError, match=message):
        volume_for(claim(**spec), CLASS, Path("/volumes/pvc-u"))


def test_a_claim_grows_but_does_not_shrink():
    def bound(size):
        return claim(status={"phase": "Bound", "capacity": {"storage": size}})

    assert wants_more(bound("512Mi"))
    assert not wants_more(bound("1Gi"))
    assert not wants_more(bound("2Gi"))
    assert not wants_more(claim())


def test_only_volumes_that_were_made_here_are_deleted_here():
    volume = volume_for(claim(), CLASS | {"reclaimPolicy": "Delete"}, Path("/volumes/pvc-u"))
    assert is_ours(volume)
    volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    assert not is_ours(volume)
    foreign = volume_for(claim(), CLASS | {"reclaimPolicy": "Delete"}, Path("/volumes/pvc-u"))
    foreign["metadata"]["annotations"] = {}
    assert not is_ours(foreign)
