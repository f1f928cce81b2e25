"""PersistentVolumeClaims: asking for a volume, seeing that it comes, telling who uses it, giving it back."""

from collections.abc import Callable, Mapping

from kitlib import config
from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, KitError, Rejected, VolumeInUse
from kitlib.k8s import manifests, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_quantity, parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.storage import gcs_fuse

CLAIM, VOLUME, CLASS = "PersistentVolumeClaim", "PersistentVolume", "StorageClass"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PREPARATION = "prepare-"  # how the runs are called that put datasets there
_NO_SOURCE = {
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
}


def volume_labels(name: str) -> dict[str, str]:
    """Return the labels of a volume, and of what belongs to it."""
    now = config.read()
    return names.labels(volume=name, workshop=now.workshop, lifetime=now.lifetime)


def create(
    kube: Kube,
    name: str,
    *,
    size: str,
    storage_class: str | None,
    source: Mapping | None,
    timeout: float | None = None,
) -> None:
    """Ask for a volume and wait until it is there; one that is there and large enough is fine.

    Raises:
        BadInput: There is no such class, or the volume is there and smaller.
        WaitTimeout: Nobody made it; the error has what was said last.
    """
    names.validate_name(name, kind="volume")
    size = check_quantity(size, what="size", example='"5Gi"') or "5Gi"
    if (claim := kube.find(CLAIM, name)) is not None:
        _check_size(kube, claim, size)
        return
    spec: dict[str, object] = {"resources": {"requests": {"storage": size}}}
    if source is not None:
        made = _create_static(kube, name, size=size, source=source)
        spec |= {"storageClassName": gcs_fuse.class_of(source), "volumeName": made}
    else:
        storage_class = storage_class or config.read().storage_class
        _check_class(kube, storage_class)
        spec |= {"storageClassName": storage_class} if storage_class else {}
    (asked,) = manifests.read(config.manifests("volume", "claim.yaml"))
    own = {"metadata": {"name": name, "labels": volume_labels(name)}, "spec": spec}
    kube.create(merge(asked, own))
    _wait_bound(kube, name, timeout)


def remove(kube: Kube, name: str, *, report: Callable[[str], None]) -> None:
    """Delete a claim, and with it what the StorageClass made for it; one that is gone is fine.

    Raises:
        VolumeInUse: Pods use it; the error names them.
    """
    claim = kube.find(CLAIM, name)
    if claim is None:
        return
    _delete_preparations(kube, name)
    if using := users(kube, name):
        raise VolumeInUse(
            f"it is in use by {', '.join(using)}",
            about=about(kube, name),
            fix="delete those runs or pods first; one that has ended holds it, too, until it is deleted",
        )
    report("deleting it")
    for helper in kube.get_all("Pod", labels=f"{names.VOLUME}={name}"):
        kube.delete("Pod", helper["metadata"]["name"])
    _delete(kube, CLAIM, name, report)
    if (bound := _static(kube, claim)) is not None:
        _delete(kube, VOLUME, bound, report)


def _delete(kube: Kube, kind: str, name: str, report: Callable[[str], None]) -> None:
    """Delete a claim or a volume, and wait until it is gone: who uses it keeps it."""
    kube.delete(kind, name)
    wait(
        watch_objects(kube, WatchSpec(kind, fields=f"metadata.name={name}")),
        until=lambda seen: not seen[kind],
        what=f"the {kind} to go",
        about=about(kube, name),
        resume="delete it again; its events say who holds it",
        describe=lambda seen: "something that uses it is still there",
        report=report,
    )


def _delete_preparations(kube: Kube, name: str) -> None:
    """Delete the pods that have put a dataset on the volume: what they said is in the dataset's own file."""
    using = users(kube, name)
    for each in kube.get_all("Pod", labels=names.RUN):
        pod, run = each["metadata"]["name"], each["metadata"]["labels"][names.RUN]
        if pod in using and pods.finished(each) and run.startswith(PREPARATION):
            kube.delete("Pod", pod)


def users(kube: Kube, name: str) -> list[str]:
    """Return the pods that name a claim, those of the kit's own copying left out.

    Pods that have ended are among them: Kubernetes keeps a claim until they are deleted.
    """
    return [
        each["metadata"]["name"]
        for each in kube.get_all("Pod")
        if not each["metadata"].get("deletionTimestamp")
        and (each["metadata"].get("labels") or {}).get(names.VOLUME) != name
        and any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == name
            for volume in each["spec"].get("volumes") or []
        )
    ]


def source(kube: Kube, name: str) -> Object:
    """Return where a volume really is, as its PersistentVolume says: ``{"nfs": {…}}``, ``{"csi": {…}}`` …

    Raises:
        Rejected: This user may not see volumes, as attendees may not.
        KitError: It has none yet.
    """
    bound = kube.get(CLAIM, name)["spec"].get("volumeName")
    if not bound:
        raise KitError("the claim has no volume yet", about=about(kube, name), fix="look again in a moment")
    spec = kube.get(VOLUME, bound)["spec"]
    return {key: value for key, value in spec.items() if key not in _NO_SOURCE}


def table(kube: Kube) -> Table:
    """Return the volumes of the namespace, the kit's and others."""
    rows = [row(each) for each in kube.get_all(CLAIM)]
    return Table(("volume", "status", "size", "mode", "class", "age"), rows, empty="no volumes")


def row(claim: Object) -> tuple:
    """Return name, status, size, access modes, class and age."""
    spec, status = claim["spec"], claim.get("status") or {}
    size = (status.get("capacity") or spec["resources"]["requests"]).get("storage")
    modes = ", ".join(status.get("accessModes") or spec["accessModes"])
    word = "Terminating" if claim["metadata"].get("deletionTimestamp") else status.get("phase")
    name, made = claim["metadata"]["name"], claim["metadata"]["creationTimestamp"]
    return name, word, size, modes, spec.get("storageClassName"), age(made)


def about(kube: Kube, name: str) -> str:
    """Return how errors call a volume."""
    return f'volume "{name}" in cluster "{kube.cluster}"'


def _check_size(kube: Kube, claim: Object, size: str) -> None:
    there = claim["spec"]["resources"]["requests"]["storage"]
    if parse_quantity(there) < parse_quantity(size):
        raise BadInput(
            f"the volume is there already, with {there}",
            about=f"{about(kube, claim['metadata']['name'])}, size={size}",
            fix=f'size="{there}", or delete it first, and with it what is on it',
        )


def _create_static(kube: Kube, claim: str, *, size: str, source: Mapping) -> str:
    """Tell Kubernetes of a volume that somebody made, promised to one claim; return its name."""
    name = f"{kube.namespace}-{claim}"
    (item,) = manifests.read(config.manifests("volume", "persistentvolume.yaml"))
    item["spec"].pop("csi")
    promised = {"claimRef": {"name": claim, "namespace": kube.namespace}, "capacity": {"storage": size}}
    spec = {"storageClassName": gcs_fuse.class_of(source), **promised, **source}
    own = {"metadata": {"name": name, "labels": volume_labels(claim)}, "spec": spec}
    kube.create(merge(item, own))
    return name


def _static(kube: Kube, claim: Object) -> str | None:
    """Return the name of what `_create_static` made for a claim; its files stay where they are."""
    name, bound = claim["metadata"]["name"], claim["spec"].get("volumeName")
    try:
        volume = kube.find(VOLUME, bound) if bound == f"{kube.namespace}-{name}" else None
    except Rejected as error:
        if error.status != 403:
            raise
        return None
    return bound if volume and names.KIT in (volume["metadata"].get("labels") or {}) else None


def _check_class(kube: Kube, name: str | None) -> None:
    """See that somebody will make the volume: a claim without would wait for ever."""
    try:
        classes = {each["metadata"]["name"]: each["metadata"] for each in kube.get_all(CLASS)}
    except Rejected as error:
        if error.status != 403:  # an attendee may not look; the wait will tell
            raise
        return
    default = any((each.get("annotations") or {}).get(DEFAULT_CLASS) == "true" for each in classes.values())
    if name not in classes and (name is not None or not default):
        raise BadInput(
            "there is no such StorageClass" if name else "the cluster has no default StorageClass",
            about=f'storage_class={name!r} in cluster "{kube.cluster}"',
            fix=f"storage_class= one of: {', '.join(sorted(classes)) or 'none; install a CSI driver'}",
        )


def _wait_bound(kube: Kube, name: str, timeout: float | None) -> None:
    """Wait until the claim has its volume, or is known to get it with its first pod."""

    def bound(seen: Snapshot) -> bool:
        reasons = {each.get("reason") for each in seen["Event"].values()}
        phases = {(each.get("status") or {}).get("phase") for each in seen[CLAIM].values()}
        return "Bound" in phases or "WaitForFirstConsumer" in reasons

    def last_words(seen: Snapshot) -> str:
        said = sorted(seen["Event"].values(), key=lambda each: each.get("lastTimestamp") or "")
        return said[-1].get("message", "") if said else "it is being made"

    with progress(f"volume {name}") as line:
        wait(
            watch_objects(
                kube,
                WatchSpec(CLAIM, fields=f"metadata.name={name}"),
                WatchSpec("Event", fields=f"involvedObject.kind={CLAIM},involvedObject.name={name}"),
            ),
            until=bound,
            timeout=timeout,
            what="the claim to get its volume",
            about=about(kube, name),
            resume="look at cluster.events(); deleting the volume takes the claim back",
            describe=last_words,
            report=line.update,
        )
        line.done("there")
