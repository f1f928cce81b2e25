"""A folder of a bucket of Cloud Storage as a volume, by GKE's driver of GCS FUSE.

It looks like a file system and is none: a file arrives when it is closed, and as a whole; a folder is renamed
file by file; of two who write one file, the last to close it wins. So: many readers, and one writer a file.

Nobody makes such a volume, so there is no StorageClass of this name: by it claims, and with them the pods
that need the driver's sidecar, are told from others.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kitlib import config
from kitlib.k8s import manifests
from kitlib.k8s.manifests import Object

CLASS = "gcs-fuse"
DRIVER = "gcsfuse.csi.storage.gke.io"
ANNOTATIONS = MappingProxyType({"gke-gcsfuse/volumes": "true"})  # of pods: GKE then adds the sidecar


def source(bucket: str, volume: str) -> Object:
    """Return where a volume is: a folder of its own in a bucket.

    The driver takes what is before the colon for the bucket; a pod cannot mount two volumes of one handle.

    Args:
        bucket: Without ``gs://``.
        volume: Its name.

    Example:
        >>> source("trainyard-lab-1", "models")["csi"]["volumeHandle"]
        'trainyard-lab-1:models'
    """
    (item,) = manifests.read(config.manifests("volume", "gcs-fuse.yaml"))
    there = item["spec"]["csi"]
    options = f"{there['volumeAttributes']['mountOptions']},only-dir=volumes/{volume}"
    attributes = {"volumeAttributes": {"mountOptions": options}}
    return {"csi": manifests.merge(there, {"volumeHandle": f"{bucket}:{volume}", **attributes})}


def class_of(source: Mapping) -> str:
    """Return the class of a volume that is somewhere already, which claim and volume have to share."""
    return CLASS if (source.get("csi") or {}).get("driver") == DRIVER else ""
