"""PersistentVolumes for storage that exists: at a given place, or in a bucket.

A folder of a bucket is mounted by GKE's driver of GCS FUSE, which is no full file system: a file arrives when
it is closed, as a whole; a folder is renamed file by file; of two writers of a file, the last to close wins.
So: many readers, and one writer a file. There is no StorageClass of the name `GCS_FUSE`; it marks such
claims, and by them the pods that need the driver's sidecar.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kitlib import config
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object, merge

CLAIM, VOLUME = "PersistentVolumeClaim", "PersistentVolume"
READ_ONLY_MANY = "ReadOnlyMany"
GCS_FUSE, GCS_FUSE_DRIVER = "gcs-fuse", "gcsfuse.csi.storage.gke.io"
GCS_FUSE_ANNOTATIONS = MappingProxyType({"gke-gcsfuse/volumes": "true"})  # of pods: GKE adds the sidecar


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
    source = {"volumeHandle": f"{bucket}:{volume}", "volumeAttributes": {"mountOptions": options}}
    return {"csi": merge(csi, source)}


def class_of(source: Mapping[str, Any]) -> str:
    """Choose the storageClassName that the claim and the PersistentVolume of a source have to share."""
    return GCS_FUSE if (source.get("csi") or {}).get("driver") == GCS_FUSE_DRIVER else ""


def create(kube: Kube, claim: str, *, size: str, source: Mapping[str, Any]) -> str:
    """Create a PersistentVolume for one claim, and return its name."""
    item = promised(kube, claim, size=size, source=source, labels=names.labels(volume=claim))
    kube.create(item)
    return item["metadata"]["name"]


def find_created(kube: Kube, claim: Object) -> str | None:
    """Find the PersistentVolume that `create` made for a claim; deleting it leaves its files."""
    name, bound = claim["metadata"]["name"], claim["spec"].get("volumeName")
    is_created = bound == _volume_name(kube, name)
    volume = allowed(lambda: kube.find(VOLUME, bound)) if is_created else None
    return bound if volume and names.KIT in (volume["metadata"].get("labels") or {}) else None


def find_shared(kube: Kube, name: str) -> Object | None:
    """Find a claim of the namespace to which a workshop shares its data, read-only."""
    claim = kube.find(CLAIM, name)
    return claim if claim and claim["spec"]["accessModes"] == [READ_ONLY_MANY] else None


def promised(
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
