"""02: a PersistentVolumeClaim that pods on many nodes may write. A dry run: it creates no volume."""

from functools import partial

from kitlib.clusters import Cluster
from kitlib.k8s.client import allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import parse_quantity
from trainyard_kit.exercises.checklist import Exercise, NotYet, field
from trainyard_kit.exercises.manifests import check_kind, check_label, dry_run

GIB = 2**30
SHARED = "shared"  # the notebook's claim
DEFAULT = "storageclass.kubernetes.io/is-default-class"
IN_TREE = "kubernetes.io/"
BINDING = {"volumeName", "selector"}
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
STUB = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "mine", "labels": {"trainyard/notebook": "02"}},
    "spec": {"accessModes": ["TODO"], "resources": {"requests": {"storage": "TODO"}}},
}
EXERCISE = Exercise("claim", "cluster", stub=STUB)


@EXERCISE.check("it is a claim", essential=True)
def kind(claim: Object, cluster: Cluster) -> None:
    check_kind(claim, kind="PersistentVolumeClaim", version="v1")


@EXERCISE.check("the API server accepts it (a dry run)", essential=True)
def accepted(claim: Object, cluster: Cluster) -> None:
    try:
        dry_run(cluster, claim)
    except NotYet as reason:
        if "quantities must match" not in str(reason):
            raise
        storage = field(claim, "spec.resources.requests.storage")
        raise NotYet(
            f"{storage!r} has a unit that Kubernetes does not know: it writes Mi and Gi, without B"
        ) from None


@EXERCISE.check("pods on many nodes may write")
def modes(claim: Object, cluster: Cluster) -> None:
    access_modes = field(claim, "spec.accessModes")
    if not isinstance(access_modes, list) or "ReadWriteMany" not in access_modes:
        raise NotYet(f"spec.accessModes is {access_modes}: which mode lets pods on several nodes write?")
    if claim["spec"].get("volumeMode") == "Block":
        raise NotYet(
            "volumeMode Block is a device without a file system, which pods cannot share: leave it out"
        )


@EXERCISE.check("it requests two gibibytes")
def size(claim: Object, cluster: Cluster) -> None:
    storage = field(claim, "spec.resources.requests.storage")
    if not isinstance(storage, str | int | float) or parse_quantity(storage) != 2 * GIB:
        unit = (
            " (M and G are powers of 1000, Mi and Gi of 1024)"
            if str(storage).endswith(("M", "G", "B"))
            else ""
        )
        raise NotYet(f"spec.resources.requests.storage is {storage!r}, and should be 2 GiB{unit}")


@EXERCISE.check("its class exists, so that it will not stay pending")
def storage_class(claim: Object, cluster: Cluster) -> None:
    for key in BINDING & set(claim["spec"]):
        raise NotYet(
            f"{key} waits for a volume that somebody has made before: leave it out, and the class makes one"
        )
    name = claim["spec"].get("storageClassName")
    claims = {item["metadata"]["name"]: item for item in cluster.kube.get_all("PersistentVolumeClaim")}
    if SHARED in claims and name is not None:
        its_class = claims[SHARED]["spec"].get("storageClassName")
        if name != its_class:
            raise NotYet(f"its class is {name!r}, and that of the claim {SHARED} {its_class!r}")
        return
    classes = allowed(lambda: cluster.kube.get_all("StorageClass"))
    if classes is None:  # an attendee of a shared cluster does not see classes
        return
    known = [class_["metadata"]["name"] for class_ in classes]
    if name is not None and name not in known:
        raise NotYet(f"there is no class {name!r}: use one of {', '.join(known)}, or none for the default")
    defaults = [
        item for item in classes if (item["metadata"].get("annotations") or {}).get(DEFAULT) == "true"
    ]
    if name is None and not defaults:
        raise NotYet(f"this cluster has no default class: name one of {', '.join(known)}")
    provisioner = next((item["provisioner"] for item in classes if item["metadata"]["name"] == name), "")
    if provisioner.startswith(IN_TREE) and provisioner != f"{IN_TREE}no-provisioner":
        return  # of a cloud, whose CSI driver has another name
    running = {item["provisioner"] for item in defaults} | _provisioners(cluster)
    if provisioner and not {provisioner, provisioner.replace("/", "-")} & running:
        raise NotYet(f"nothing provisions volumes of class {name!r}: {provisioner} is not installed here")


def _provisioners(cluster: Cluster) -> set[str]:
    """List what provisions volumes here, as far as it shows: CSI drivers, and who made the volumes."""
    drivers = allowed(lambda: cluster.kube.get_all("CSIDriver", api_version="storage.k8s.io/v1")) or []
    volumes = allowed(lambda: cluster.kube.get_all("PersistentVolume")) or []
    makers = ((item["metadata"].get("annotations") or {}).get(PROVISIONED_BY, "") for item in volumes)
    # sig-storage-lib-external-provisioner holds a lease of the provisioner's name, with - for /.
    spaces = allowed(lambda: cluster.kube.get_all("Namespace")) or []
    leases = (allowed(partial(_leases, cluster, space["metadata"]["name"])) or [] for space in spaces)
    return {item["metadata"]["name"] for items in (drivers, *leases) for item in items} | set(makers)


def _leases(cluster: Cluster, namespace: str) -> list[Object]:
    return cluster.kube.within(namespace).get_all("Lease", api_version="coordination.k8s.io/v1")


@EXERCISE.check("the notebook's last cell finds it")
def labelled(claim: Object, cluster: Cluster) -> None:
    check_label(claim, "02")
