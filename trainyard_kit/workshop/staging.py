"""Datasets of a workshop: prepared once on the instructor's volume, and shared read-only with all attendees.

Because a claim belongs to one namespace, each attendee's namespace has a claim and a PersistentVolume for the
same storage, read-only if the volume type supports that. The claim's annotations list the datasets, so that
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
BY_ACCESS_MODE = ("hostPath", "local")  # have no readOnly field; local nodes use the access mode
ONE_NODE = ("ebs.csi.aws.com", "pd.csi.storage.gke.io")


@dataclass(frozen=True)
class Staged:
    """Datasets that all attendees may read: source and size of the volume, and descriptions by name."""

    source: Object
    size: str
    descriptions: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        synthetic = ", ".join(name for name, item in self.descriptions.items() if item["synthetic"])
        return ", ".join(self.descriptions) + (f" (synthetic: {synthetic})" if synthetic else "")

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
        annotations = {SHARED_NOTE: json.dumps(self.descriptions)}
        meta = {"name": SHARED, "labels": dict(labels), "annotations": annotations}
        kube.apply(merge(merge(claim, {"metadata": meta, "spec": spec}), modes))


def read_only(source: Mapping[str, Any]) -> Object:
    """Make a volume source read-only; raise BadInput for a disk that only one node can mount.

    A Filestore share is mounted as the NFS volume that it is, because its driver stages a handle only once
    on a node, regardless of the number of PersistentVolumes.

    Example:
        >>> read_only({"nfs": {"server": "10.0.0.2", "path": "/share"}})
        {'nfs': {'server': '10.0.0.2', 'path': '/share', 'readOnly': True}}
    """
    ((kind, spec),) = source.items()
    if kind in BY_ACCESS_MODE:
        return {kind: spec}
    attributes = spec.get("volumeAttributes") or {}
    if kind == "csi" and spec["driver"] == FILESTORE and {"ip", "volume"} <= set(attributes):
        return {"nfs": {"server": attributes["ip"], "path": f"/{attributes['volume']}", "readOnly": True}}
    if kind not in ("nfs", "csi", "cephfs", "glusterfs", "azureFile") or spec.get("driver") in ONE_NODE:
        raise BadInput(
            "it is a disk that only one node can mount at a time, and cannot be shared",
            about=f"a volume of type {spec.get('driver', kind)}",
            fix="use a `storage_class=` that supports ReadWriteMany: EFS, Filestore, or an NFS server",
        )
    return {kind: {**spec, "readOnly": True}}


def stage(cluster: Cluster, by_dataset: Mapping[str, Mapping[str, Any]]) -> Staged:
    """Prepare datasets on the shared volume; existing ones are kept."""
    volume = cluster.create_volume(SHARED, size=SIZE)
    read_only(volume.source)  # raises before the download if the volume cannot be shared
    for name, options in by_dataset.items():
        dataset.prepare_dataset(name, volume=volume, **options)
    descriptions = {name: dataset.description_of(volume, name) for name in by_dataset}
    annotation = json.dumps({**_read_annotation(cluster.kube), **descriptions})
    patch = {"metadata": {"annotations": {SHARED_NOTE: annotation}}}
    cluster.kube.patch("PersistentVolumeClaim", SHARED, patch)
    result = staged(cluster)
    assert result is not None  # the annotation was just written
    return result


def staged(cluster: Cluster) -> Staged | None:
    """Return the datasets that are staged in a cluster, or None."""
    descriptions = _read_annotation(cluster.kube)
    if not descriptions:
        return None
    volume = cluster.volume(SHARED)
    size = cluster.kube.get("PersistentVolumeClaim", SHARED)["spec"]["resources"]["requests"]["storage"]
    return Staged(volume.source, size, descriptions)


def delete(cluster: Cluster) -> None:
    """Delete the staged datasets; idempotent."""
    if not _read_annotation(cluster.kube):
        return
    try:
        cluster.volume(SHARED).delete()
    except VolumeNotFound:
        return


def _read_annotation(kube: Kube) -> dict[str, Mapping[str, Any]]:
    claim = kube.find("PersistentVolumeClaim", SHARED)
    if claim is None:
        return {}
    return json.loads((claim["metadata"].get("annotations") or {}).get(SHARED_NOTE, "{}"))
