"""StorageClasses: on how many nodes at once their volumes can be mounted, by provisioner or by name.

Who has rights in one namespace alone may not read classes: then the name decides, which clouds and
distributions give. An unknown class is assumed to support what is requested.
"""

from collections.abc import Sequence

from kitlib.errors import BadInput
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object

CLASS = "StorageClass"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANY, ONE = "ReadWriteMany", "ReadWriteOnce"
MODES = (MANY, ONE, "ReadWriteOncePod", "ReadOnlyMany")
# https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes, and the drivers' own documents
ONE_NODE = frozenset(
    {
        "ebs.csi.aws.com", "kubernetes.io/aws-ebs", "ebs.csi.eks.amazonaws.com",
        "pd.csi.storage.gke.io", "kubernetes.io/gce-pd", "hyperdisk.csi.storage.gke.io",
        "disk.csi.azure.com", "kubernetes.io/azure-disk",
        "rancher.io/local-path", "docker.io/hostpath", "k8s.io/minikube-hostpath", "microk8s.io/hostpath",
        "hostpath.csi.k8s.io", "openebs.io/local", "local.csi.openebs.io", "zfs.csi.openebs.io",
        "topolvm.io", "topolvm.cybozu.com", "kubernetes.io/no-provisioner", "lvm.csi.metal-stack.io",
        "cinder.csi.openstack.org", "kubernetes.io/cinder", "rook-ceph.rbd.csi.ceph.com", "rbd.csi.ceph.com",
        "dobs.csi.digitalocean.com", "linodebs.csi.linode.com", "csi.hetzner.cloud", "csi.scaleway.com",
        "block.csi.vultr.com", "csi.vsphere.vmware.com", "vpc.block.csi.ibm.io",
        "blockvolume.csi.oraclecloud.com", "csi.exoscale.com", "diskplugin.csi.alibabacloud.com",
    }
)  # fmt: skip
MANY_NODES = frozenset(
    {
        "efs.csi.aws.com", "fsx.csi.aws.com", "filestore.csi.storage.gke.io", "file.csi.azure.com",
        "kubernetes.io/azure-file", "nfs.csi.k8s.io", "cephfs.csi.ceph.com", "rook-ceph.cephfs.csi.ceph.com",
        "smb.csi.k8s.io", "driver.longhorn.io", "lustre.csi.storage.gke.io", "azurelustre.csi.azure.com",
        "trainyard.local/directory", "manila.csi.openstack.org", "weka.csi.wekafs.com", "csi.juicefs.com",
    }
)  # fmt: skip
# Where the class cannot be read: the defaults of EKS, GKE, AKS, k3s, minikube, Docker and others.
ONE_NODE_NAMES = frozenset(
    {
        "ebs", "gp2", "gp3", "auto-ebs-sc", "standard-rwo", "premium-rwo", "local-path", "hostpath",
        "default", "managed", "managed-csi", "managed-premium", "managed-csi-premium", "microk8s-hostpath",
        "do-block-storage", "linode-block-storage", "linode-block-storage-retain", "hcloud-volumes",
        "rook-ceph-block", "ocs-storagecluster-ceph-rbd", "gp2-csi", "gp3-csi", "thin-csi",
        "topolvm-provisioner",
    }
)  # fmt: skip


def read_classes(kube: Kube) -> list[Object] | None:
    """List the classes; None where this user may not."""
    return allowed(lambda: list(kube.get_all(CLASS)))


def default_of(classes: Sequence[Object]) -> Object | None:
    """Find the default class; of several, the newest is the one that the API server takes."""
    marked = [
        item for item in classes if (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    return max(marked, key=lambda item: item["metadata"].get("creationTimestamp") or "", default=None)


def nodes_of(name: str | None, classes: Sequence[Object] | None) -> str:
    """Tell on how many nodes at once a volume of a class can be mounted: ``one``, ``many``, or empty."""
    storage_class = next((item for item in classes or () if item["metadata"]["name"] == name), None)
    if storage_class is None:
        return "one" if classes is None and name in ONE_NODE_NAMES else ""
    provisioner = storage_class["provisioner"]
    if provisioner.startswith("cluster.local/") or "nfs" in provisioner:  # of a chart, named by its release
        return "many"
    return "one" if provisioner in ONE_NODE else "many" if provisioner in MANY_NODES else ""


def check_access_mode(mode: str | None) -> str | None:
    """Raise BadInput for what is no access mode."""
    if mode is not None and mode not in MODES:
        more = ", ".join(MODES[2:])
        fix = f'access_mode="{MANY}" for pods on all nodes, "{ONE}" for pods on one; also {more}'
        raise BadInput("there is no such access mode", about=f"access_mode={mode!r}", fix=fix)
    return mode


def choose_access_mode(
    mode: str | None, name: str | None, classes: Sequence[Object] | None, *, nodes: int | None, about: str
) -> str:
    """Choose the access mode of a claim by what its class can.

    Args:
        mode: That somebody has set; by default many nodes, or one if the cluster has no second.
        nodes: Of the cluster; None if this user may not see them.

    Raises:
        BadInput: The class is known for one node, and many are asked for.
    """
    if nodes_of(name, classes) != "one" or mode not in (None, MANY, "ReadOnlyMany"):
        return mode or MANY
    if mode is None and nodes == 1:
        return ONE
    raise BadInput(
        f'volumes of StorageClass "{name}" can be mounted on one node at a time',
        about=about,
        fix=f"{shared_class(classes)} lets pods on all nodes write; "
        f'or access_mode="{ONE}", if all are on one node',
    )


def shared_class(classes: Sequence[Object] | None) -> str:
    """Name the class whose volumes many nodes can mount."""
    names = [item["metadata"]["name"] for item in classes or ()]
    fits = [name for name in names if nodes_of(name, classes) == "many"]
    return f'storage_class="{fits[0]}"' if fits else "a class for NFS, EFS, Filestore, CephFS or Azure Files"
