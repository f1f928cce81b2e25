"""PersistentVolumes for storage that exists: at a given place, in a bucket, or shared by many namespaces.

A claim and its PersistentVolume belong to one namespace. To share a workshop's data, each namespace gets a
PersistentVolume of its own that leads to the same place, and is read-only where its kind supports that.

A folder of a bucket is mounted by GKE's driver of GCS FUSE, which is no full file system: a file arrives when
it is closed, as a whole; a folder is renamed file by file; of two writers of a file, the last to close wins.
So: many readers, and one writer a file. There is no StorageClass of the name `GCS_FUSE`; it marks such
claims, and by them the pods that need the driver's sidecar.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kitlib import config
from kitlib.errors import BadInput
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object, merge

CLAIM, VOLUME = "PersistentVolumeClaim", "PersistentVolume"
READ_ONLY_MANY = "ReadOnlyMany"
GCS_FUSE, GCS_FUSE_DRIVER = "gcs-fuse", "gcsfuse.csi.storage.gke.io"
GCS_FUSE_ANNOTATIONS = MappingProxyType({"gke-gcsfuse/volumes": "true"})  # of pods: GKE adds the sidecar
FILESTORE = "filestore.csi.storage.gke.io"
BY_MODE_ALONE = ("hostPath", "local")  # without a readOnly: local nodes go by the access mode
ONE_NODE = ("ebs.csi.aws.com", "pd.csi.storage.gke.io")


def volume_labels(name: str) -> dict[str, str]:
    """Build the labels of a volume, and of what belongs to it."""
    now = config.read()
    return names.labels(volume=name, workshop=now.workshop, lifetime=now.lifetime)


def gcs_fuse_source(bucket: str, volume: str) -> Object:
    """Build the source of a volume that is a folder in a bucket.

    The driver takes what is before the colon for the bucket; a pod cannot mount two volumes of one handle.

    Example:
        >>> gcs_fuse_source("trainyard-lab-1", "models")["csi"]["volumeHandle"]
        'trainyard-lab-1:models'
    """
    (item,) = manifests.read(config.manifests("volume", "gcs-fuse.yaml"))
    csi = item["spec"]["csi"]
    options = f"{csi['volumeAttributes']['mountOptions']},only-dir=volumes/{volume}"
    own = {"volumeHandle": f"{bucket}:{volume}", "volumeAttributes": {"mountOptions": options}}
    return {"csi": merge(csi, own)}


def class_of(source: Mapping[str, Any]) -> str:
    """Choose the storageClassName that the claim and the PersistentVolume of a source have to share."""
    return GCS_FUSE if (source.get("csi") or {}).get("driver") == GCS_FUSE_DRIVER else ""


def create(kube: Kube, claim: str, *, size: str, source: Mapping[str, Any]) -> str:
    """Create a PersistentVolume for one claim, and return its name."""
    item = _promised(kube, claim, size=size, source=source, labels=volume_labels(claim))
    kube.create(item)
    return item["metadata"]["name"]


def find_created(kube: Kube, claim: Object) -> str | None:
    """Find the PersistentVolume that `create` made for a claim; deleting it leaves its files."""
    name, bound = claim["metadata"]["name"], claim["spec"].get("volumeName")
    ours = bound == _volume_name(kube, name)
    volume = allowed(lambda: kube.find(VOLUME, bound)) if ours else None
    return bound if volume and names.KIT in (volume["metadata"].get("labels") or {}) else None


def share(
    kube: Kube,
    name: str,
    *,
    source: Mapping[str, Any],
    size: str,
    labels: Mapping[str, str],
    notes: Mapping[str, str],
) -> None:
    """Create a read-only claim in a namespace, and a PersistentVolume for it, for a `Volume.source`."""
    modes = {"spec": {"accessModes": [READ_ONLY_MANY]}}
    volume = _promised(kube, name, size=size, source=read_only(source), labels=labels)
    kube.apply(merge(volume, modes))
    (claim,) = manifests.read(config.manifests("volume", "claim.yaml"))
    spec = {
        "storageClassName": class_of(source),
        "volumeName": volume["metadata"]["name"],
        "resources": {"requests": {"storage": size}},
    }
    meta = {"name": name, "labels": dict(labels), "annotations": dict(notes)}
    kube.apply(merge(merge(claim, {"metadata": meta, "spec": spec}), modes))


def find_shared(kube: Kube, name: str) -> Object | None:
    """Find a claim of the namespace that `share` created."""
    claim = kube.find(CLAIM, name)
    return claim if claim and claim["spec"]["accessModes"] == [READ_ONLY_MANY] else None


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
            fix="use a storage_class= that supports ReadWriteMany: EFS, Filestore, or an NFS server",
        )
    return {kind: {**where, "readOnly": True}}


def _promised(
    kube: Kube, claim: str, *, size: str, source: Mapping[str, Any], labels: Mapping[str, str]
) -> Object:
    """Build a PersistentVolume that only one claim can bind to."""
    _, item, _ = manifests.read(config.manifests("volume", "storage.yaml"))
    del item["spec"]["csi"], item["spec"]["mountOptions"]
    spec = {
        "storageClassName": class_of(source),
        "claimRef": {"name": claim, "namespace": kube.namespace},
        "capacity": {"storage": size},
        **source,
    }
    meta = {"name": _volume_name(kube, claim), "labels": dict(labels)}
    return merge(item, {"metadata": meta, "spec": spec})


def _volume_name(kube: Kube, claim: str) -> str:
    return f"{kube.namespace}-{claim}"
