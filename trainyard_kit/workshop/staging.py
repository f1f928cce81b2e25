"""Datasets of a workshop: prepared once on the instructor's volume, and shared read-only with all attendees.

A claim and its PersistentVolume belong to one namespace: each attendee's gets both, which lead to the same
place, and are read-only where its kind supports that. The claim's annotations list the datasets, so that
`prepare_dataset` finds them without starting a pod.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.datasets import dataset
from kitlib.datasets.dataset import SHARED, SHARED_NOTE
from kitlib.errors import BadInput, VolumeNotFound
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object, merge
from kitlib.storage import persistent_volume

SIZE = "10Gi"
FILESTORE = "filestore.csi.storage.gke.io"
BY_MODE_ALONE = ("hostPath", "local")  # without a readOnly: local nodes go by the access mode
ONE_NODE = ("ebs.csi.aws.com", "pd.csi.storage.gke.io")


@dataclass(frozen=True)
class Staged:
    """Datasets that all attendees may read: the volume's source and size, and their descriptions by name."""

    source: Object
    size: str
    found: Mapping[str, Mapping[str, Any]]

    @property
    def said(self) -> str:
        """Their names, in words."""
        drawn = ", ".join(name for name, about in self.found.items() if about["synthetic"])
        return ", ".join(self.found) + (f" (stand-ins: {drawn})" if drawn else "")

    def share(self, kube: Kube, *, labels: Mapping[str, str]) -> None:
        """Create the read-only claim in a namespace, and a PersistentVolume for it."""
        modes = {"spec": {"accessModes": [persistent_volume.READ_ONLY_MANY]}}
        source = read_only(self.source)
        volume = persistent_volume.promised(kube, SHARED, size=self.size, source=source, labels=labels)
        kube.apply(merge(volume, modes))
        (claim,) = manifests.read(config.manifests("volume", "claim.yaml"))
        spec = {
            "storageClassName": persistent_volume.class_of(self.source),
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": self.size}},
        }
        notes = {SHARED_NOTE: json.dumps(self.found)}
        meta = {"name": SHARED, "labels": dict(labels), "annotations": notes}
        kube.apply(merge(merge(claim, {"metadata": meta, "spec": spec}), modes))


def read_only(source: Mapping[str, Any]) -> Object:
    """Change a source so that pods cannot write to it; raise BadInput for a disk that one node mounts.

    A Filestore share becomes an NFS volume, which it is: several PersistentVolumes with one handle of its
    driver would be staged at one place of a node, once.

    Example:
        >>> read_only({"nfs": {"server": "10.0.0.2", "path": "/share"}})
        {'nfs': {'server': '10.0.0.2', 'path': '/share', 'readOnly': True}}
    """
    ((kind, where),) = source.items()
    if kind in BY_MODE_ALONE:
        return {kind: where}
    attributes = where.get("volumeAttributes") or {}
    if kind == "csi" and where["driver"] == FILESTORE and {"ip", "volume"} <= set(attributes):
        return {"nfs": {"server": attributes["ip"], "path": f"/{attributes['volume']}", "readOnly": True}}
    if kind not in ("nfs", "csi", "cephfs", "glusterfs", "azureFile") or where.get("driver") in ONE_NODE:
        raise BadInput(
            "it is a disk that one node mounts at a time, and cannot be shared",
            about=f"a volume of the kind {where.get('driver', kind)}",
            fix="use a `storage_class=` that supports ReadWriteMany: EFS, Filestore, or an NFS server",
        )
    return {kind: {**where, "readOnly": True}}


def stage(cluster: Cluster, by_dataset: Mapping[str, Mapping[str, Any]]) -> Staged:
    """Prepare datasets on the shared volume; those that are there already are kept."""
    volume = cluster.create_volume(SHARED, size=SIZE)
    read_only(volume.source)  # raises if the volume cannot be shared, before anything is fetched
    for name, options in by_dataset.items():
        dataset.prepare_dataset(name, volume=volume, **options)
    descriptions = {name: dataset.description_of(volume, name) for name in by_dataset}
    before = _noted(cluster.kube)
    note = {"metadata": {"annotations": {SHARED_NOTE: json.dumps({**before, **descriptions})}}}
    cluster.kube.patch("PersistentVolumeClaim", SHARED, note)
    found = staged(cluster)
    assert found is not None  # the annotation was just written
    return found


def staged(cluster: Cluster) -> Staged | None:
    """Find the datasets that were staged in a cluster, or None."""
    note = _noted(cluster.kube)
    if not note:
        return None
    volume = cluster.volume(SHARED)
    size = cluster.kube.get("PersistentVolumeClaim", SHARED)["spec"]["resources"]["requests"]["storage"]
    return Staged(volume.source, size, note)


def delete(cluster: Cluster) -> None:
    """Delete the staged datasets; idempotent."""
    if not _noted(cluster.kube):
        return
    try:
        cluster.volume(SHARED).delete()
    except VolumeNotFound:
        return


def _noted(kube: Kube) -> dict[str, Mapping[str, Any]]:
    claim = kube.find("PersistentVolumeClaim", SHARED)
    if claim is None:
        return {}
    return json.loads((claim["metadata"].get("annotations") or {}).get(SHARED_NOTE, "{}"))
