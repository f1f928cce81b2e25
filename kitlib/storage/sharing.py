"""One volume for many namespaces, to read: the data of a workshop are staged once, and nobody spoils them.

A claim belongs to one namespace, and so does the PersistentVolume that it is bound to. Each namespace gets a
PersistentVolume of its own that leads to the same place, and is read-only where its kind can say so.
"""

from collections.abc import Mapping

from kitlib import config
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.storage import gcs_fuse, pvc

MODE = "ReadOnlyMany"
FILESTORE = "filestore.csi.storage.gke.io"
WITHOUT_WORD = ("hostPath", "local")  # only the mode says that nobody writes: local nodes heed it
ONE_NODE = ("ebs.csi.aws.com", "pd.csi.storage.gke.io")


def share(
    kube: Kube, name: str, *, source: Mapping, size: str, labels: Mapping[str, str], notes: Mapping[str, str]
) -> None:
    """Have a claim in a namespace that leads to a place which is there, and is read only.

    Args:
        kube: Within the namespace.
        name: Of the claim.
        source: Where it is, as `Volume.source` tells.
        size: What the claim says of its size.
        labels: Of both objects.
        notes: Annotations of the claim, for programs.

    Raises:
        BadInput: It is a disk that one node mounts at a time.
    """
    bound = volume_name(kube.namespace, name)
    (volume,) = manifests.read(config.manifests("volume", "persistentvolume.yaml"))
    del volume["spec"]["csi"]
    promised = {"claimRef": {"name": name, "namespace": kube.namespace}, "capacity": {"storage": size}}
    kind = gcs_fuse.class_of(source)
    spec = {"accessModes": [MODE], "storageClassName": kind, **promised, **read_only(source)}
    kube.apply(manifests.merge(volume, {"metadata": {"name": bound, "labels": dict(labels)}, "spec": spec}))
    (claim,) = manifests.read(config.manifests("volume", "claim.yaml"))
    spec = {
        "accessModes": [MODE],
        "storageClassName": kind,
        "volumeName": bound,
        "resources": {"requests": {"storage": size}},
    }
    meta = {"name": name, "labels": dict(labels), "annotations": dict(notes)}
    kube.apply(manifests.merge(claim, {"metadata": meta, "spec": spec}))


def volume_name(namespace: str, claim: str) -> str:
    """Return how the PersistentVolume of a namespace is called."""
    return f"{namespace}-{claim}"


def read_only(source: Mapping) -> Object:
    """Return where a volume is, so that what mounts it cannot write to it. Pure.

    A share of Filestore becomes what it is, NFS: one handle of its driver in several PersistentVolumes would
    be staged at one place of a node, once.

    Raises:
        BadInput: It is a disk that one node mounts at a time.

    Example:
        >>> read_only({"nfs": {"server": "10.0.0.2", "path": "/share"}})
        {'nfs': {'server': '10.0.0.2', 'path': '/share', 'readOnly': True}}
    """
    ((kind, where),) = source.items()
    if kind in WITHOUT_WORD:
        return {kind: where}
    attributes = where.get("volumeAttributes") or {}
    if kind == "csi" and where["driver"] == FILESTORE and {"ip", "volume"} <= set(attributes):
        return {"nfs": {"server": attributes["ip"], "path": f"/{attributes['volume']}", "readOnly": True}}
    if kind not in ("nfs", "csi", "cephfs", "glusterfs", "azureFile") or where.get("driver") in ONE_NODE:
        raise BadInput(
            "it is a disk that one node mounts at a time, and cannot be shared",
            about=f"a volume of the kind {where.get('driver', kind)}",
            fix="storage_class= one that knows ReadWriteMany: EFS, Filestore, or a server of NFS",
        )
    return {kind: {**where, "readOnly": True}}


def shared_claim(kube: Kube, name: str) -> Object | None:
    """Return a claim of the namespace that was shared by `share`, or None."""
    claim = kube.find(pvc.CLAIM, name)
    return claim if claim and claim["spec"]["accessModes"] == [MODE] else None
