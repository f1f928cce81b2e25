"""PersistentVolumeClaims: create, wait, find the pods that use one, delete."""

from collections.abc import Callable, Mapping
from typing import Any

from kitlib import config
from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, KitError, VolumeInUse
from kitlib.k8s import manifests, names, pods
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_quantity, parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.storage import persistent_volume
from kitlib.storage.persistent_volume import CLAIM, VOLUME

CLASS = "StorageClass"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PREPARATION = "prepare-"  # the names of runs that put datasets there begin so
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


def create(
    kube: Kube,
    name: str,
    *,
    size: str,
    storage_class: str | None,
    source: Mapping[str, Any] | None,
    timeout: float | None = None,
) -> None:
    """Create a claim and wait until it is bound; one that exists and is large enough is fine."""
    names.validate_name(name, kind="volume")
    size = check_quantity(size, what="size", example='"5Gi"') or "5Gi"
    if (claim := kube.find(CLAIM, name)) is not None:
        _check_size(kube, claim, size)
        return
    spec: dict[str, object] = {"resources": {"requests": {"storage": size}}}
    if source is not None:
        volume = persistent_volume.create(kube, name, size=size, source=source)
        spec |= {"storageClassName": persistent_volume.class_of(source), "volumeName": volume}
    else:
        storage_class = storage_class or config.read().storage_class
        _check_class(kube, storage_class)
        spec |= {"storageClassName": storage_class} if storage_class else {}
    (asked,) = manifests.read(config.manifests("volume", "claim.yaml"))
    own = {"metadata": {"name": name, "labels": names.labels(volume=name)}, "spec": spec}
    kube.create(merge(asked, own))
    _wait_bound(kube, name, timeout)


def delete(kube: Kube, name: str, *, report: Callable[[str], None]) -> None:
    """Delete a claim, with what the StorageClass made for it; raise VolumeInUse if pods use it."""
    claim = kube.find(CLAIM, name)
    if claim is None:
        return
    _delete_preparations(kube, name)
    if using := users(kube, name):
        raise VolumeInUse(
            f"it is in use by {', '.join(using)}",
            about=about(kube, name),
            fix="delete those runs or pods first; a pod that has ended holds it until it is deleted",
        )
    report("deleting it")
    for helper in kube.get_all("Pod", labels=f"{names.VOLUME}={name}"):
        kube.delete("Pod", helper["metadata"]["name"])
    _delete(kube, CLAIM, name, report)
    if (bound := persistent_volume.find_created(kube, claim)) is not None:
        _delete(kube, VOLUME, bound, report)


def _delete(kube: Kube, kind: str, name: str, report: Callable[[str], None]) -> None:
    """Delete a claim or a volume, and wait until it is gone: pods that use it keep it."""
    kube.delete(kind, name)
    wait(
        watch_objects(kube, WatchSpec(kind, fields=f"metadata.name={name}")),
        until=lambda seen: not seen[kind],
        what=f"the {kind} to go",
        about=about(kube, name),
        resume="delete it again; its events name what holds it",
        describe=lambda seen: "something still uses it",
        report=report,
    )


def _delete_preparations(kube: Kube, name: str) -> None:
    """Delete the ended pods that prepared a dataset there; their result is in the dataset's own file."""
    using = users(kube, name)
    for user in kube.get_all("Pod", labels=names.RUN):
        pod, run = user["metadata"]["name"], user["metadata"]["labels"][names.RUN]
        if pod in using and pods.finished(user) and run.startswith(PREPARATION):
            kube.delete("Pod", pod)


def users(kube: Kube, name: str) -> list[str]:
    """List the pods that mount a claim, without the kit's helper pods.

    Pods that have ended are among them: Kubernetes keeps a claim until they are deleted.
    """
    return [
        pod["metadata"]["name"]
        for pod in kube.get_all("Pod")
        if not pod["metadata"].get("deletionTimestamp")
        and (pod["metadata"].get("labels") or {}).get(names.VOLUME) != name
        and any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == name
            for volume in pod["spec"].get("volumes") or []
        )
    ]


def source(kube: Kube, name: str) -> Object:
    """Read the source of a claim's PersistentVolume: ``{"nfs": {…}}``, ``{"csi": {…}}`` …"""
    bound = kube.get(CLAIM, name)["spec"].get("volumeName")
    if not bound:
        raise KitError("the claim has no volume yet", about=about(kube, name), fix="look again in a moment")
    spec = kube.get(VOLUME, bound)["spec"]
    return {key: value for key, value in spec.items() if key not in _NO_SOURCE}


def table(kube: Kube) -> Table:
    """List the claims of the namespace."""
    rows = [row(claim) for claim in kube.get_all(CLAIM)]
    return Table(("volume", "status", "size", "mode", "class", "age"), rows, empty="no volumes")


def row(claim: Object) -> tuple[object, ...]:
    """Format a claim: name, status, size, access modes, class and age."""
    spec, status = claim["spec"], claim.get("status") or {}
    size = (status.get("capacity") or spec["resources"]["requests"]).get("storage")
    modes = ", ".join(status.get("accessModes") or spec["accessModes"])
    word = "Terminating" if claim["metadata"].get("deletionTimestamp") else status.get("phase")
    name, made = claim["metadata"]["name"], claim["metadata"]["creationTimestamp"]
    return name, word, size, modes, spec.get("storageClassName"), age(made)


def about(kube: Kube, name: str) -> str:
    """Name a volume in an error."""
    return f'volume "{name}" in cluster "{kube.cluster}"'


def _check_size(kube: Kube, claim: Object, size: str) -> None:
    there = claim["spec"]["resources"]["requests"]["storage"]
    if parse_quantity(there) < parse_quantity(size):
        raise BadInput(
            f"the volume exists already, with {there}",
            about=f"{about(kube, claim['metadata']['name'])}, size={size}",
            fix=f'size="{there}", or delete it first, with all that is on it',
        )


def _check_class(kube: Kube, name: str | None) -> None:
    """Check that there is a StorageClass: a claim without one would wait forever."""
    if (listed := allowed(lambda: kube.get_all(CLASS))) is None:  # an attendee; the wait will tell
        return
    classes = {item["metadata"]["name"]: item["metadata"] for item in listed}
    default = any(
        (metadata.get("annotations") or {}).get(DEFAULT_CLASS) == "true" for metadata in classes.values()
    )
    if name not in classes and (name is not None or not default):
        raise BadInput(
            "there is no such StorageClass" if name else "the cluster has no default StorageClass",
            about=f'storage_class={name!r} in cluster "{kube.cluster}"',
            fix=f"set storage_class= to one of: {', '.join(sorted(classes)) or 'none; install a CSI driver'}",
        )


def _wait_bound(kube: Kube, name: str, timeout: float | None) -> None:
    """Wait until the claim is bound, or waits for its first pod to be."""

    def bound(seen: Snapshot) -> bool:
        reasons = {event.get("reason") for event in seen["Event"].values()}
        phases = {(claim.get("status") or {}).get("phase") for claim in seen[CLAIM].values()}
        return "Bound" in phases or "WaitForFirstConsumer" in reasons

    def last_words(seen: Snapshot) -> str:
        events = sorted(seen["Event"].values(), key=lambda event: event.get("lastTimestamp") or "")
        return events[-1].get("message", "") if events else "it is being created"

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
