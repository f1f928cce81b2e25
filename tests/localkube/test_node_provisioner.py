"""Which claims get a volume, and what that volume says."""

from pathlib import Path

import pytest

from localkube.kubelet.volumes.provisioner import PROVISIONER, ProvisioningError, is_ours, volume_for

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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"volumeMode": "Block"}, "use Filesystem"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}, "copy the files"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "leave the selector out"),
    ],
)
def test_claims_that_a_directory_cannot_satisfy_are_refused(spec, message):
    with pytest.raises(ProvisioningError, match=message):
        volume_for(claim(**spec), CLASS, Path("/volumes/pvc-u"))


def test_only_volumes_that_were_made_here_are_deleted_here():
    volume = volume_for(claim(), CLASS | {"reclaimPolicy": "Delete"}, Path("/volumes/pvc-u"))
    assert is_ours(volume)
    volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    assert not is_ours(volume)
    foreign = volume_for(claim(), CLASS | {"reclaimPolicy": "Delete"}, Path("/volumes/pvc-u"))
    foreign["metadata"]["annotations"] = {}
    assert not is_ours(foreign)
