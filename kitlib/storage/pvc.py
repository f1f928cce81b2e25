"""PersistentVolumeClaims: create, wait, find the pods that use one, delete."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kitlib import config
from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, KitError, VolumeInUse
from kitlib.k8s import manifests, names, pods
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_quantity, parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.storage import persistent_volume, storage_class
from kitlib.storage.persistent_volume import CLAIM as CLAIM
from kitlib.storage.persistent_volume import VOLUME

NO_CLASS = re.compile(r'storageclass\S{0,60} "([^"]+)" not found')
PREPARATION = "prepare-"  # prefix of the names of runs that prepare datasets
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
    class_name: str | None,
    source: Mapping[str, Any] | None,
    access_mode: str | None = None,
    timeout: float | None = None,
) -> None:
    """Create a claim and wait until it is bound; one that exists and is large enough is fine."""
    names.validate_name(name, kind="volume")
    storage_class.check_access_mode(access_mode)
    size = check_quantity(size, what="size", example='"5Gi"') or "5Gi"
    if (claim := kube.find(CLAIM, name)) is not None:
        _check_size(kube, claim, size)
        return
    spec: dict[str, object] = {"resources": {"requests": {"storage": size}}}
    if source is not None:
        volume = persistent_volume.create(kube, name, size=size, source=source)
        spec |= {"storageClassName": persistent_volume.class_of(source), "volumeName": volume}
    else:
        class_name = class_name or config.read().storage_class
        spec |= {"storageClassName": class_name} if class_name else {}
        access_mode = _choose_mode(kube, name, class_name, access_mode, size)
    spec |= {"accessModes": [access_mode]} if access_mode else {}
    (manifest,) = manifests.read(config.manifests("volume", "claim.yaml"))
    overrides = {"metadata": {"name": name, "labels": names.labels(volume=name)}, "spec": spec}
    kube.create(merge(manifest, overrides))
    _wait_bound(kube, name, timeout)


def delete(kube: Kube, name: str, *, report: Callable[[str], None]) -> None:
    """Delete a claim, with the volume that its StorageClass provisioned; raise VolumeInUse if pods use it."""
    claim = kube.find(CLAIM, name)
    if claim is None:
        return
    _delete_preparations(kube, name)
    if using := users(kube, name):
        fix = "delete those runs or pods first; a pod that has ended holds it until it is deleted"
        raise VolumeInUse(f"it is in use by {', '.join(using)}", about=about(kube, name), fix=fix)
    report("deleting it")
    for helper in kube.get_all("Pod", labels=f"{names.VOLUME}={name}"):
        kube.delete("Pod", helper["metadata"]["name"])
    _delete(kube, CLAIM, name, report)
    if (bound := persistent_volume.find_created(kube, claim)) is not None:
        _delete(kube, VOLUME, bound, report)


def _delete(kube: Kube, kind: str, name: str, report: Callable[[str], None]) -> None:
    """Delete a claim or a volume, and wait for the deletion, which pods that use it delay."""
    kube.delete(kind, name)
    wait(
        watch_objects(kube, WatchSpec(kind, fields=f"metadata.name={name}")),
        until=lambda snapshot: not snapshot[kind],
        what=f"the {kind} to be deleted",
        about=about(kube, name),
        resume="delete it again; its events name what holds it",
        describe=lambda snapshot: "pods or a finalizer still hold it",
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
        if not pods.deleted(pod)
        and (pod["metadata"].get("labels") or {}).get(names.VOLUME) != name
        and name in pods.claims_of(pod)
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
    word = "Terminating" if pods.deleted(claim) else status.get("phase")
    name, created = claim["metadata"]["name"], claim["metadata"]["creationTimestamp"]
    return name, word, size, modes, spec.get("storageClassName"), age(created)


def about(kube: Kube, name: str) -> str:
    """Name a volume in an error."""
    return f'volume "{name}" in cluster "{kube.cluster}"'


def _check_size(kube: Kube, claim: Object, size: str) -> None:
    size_now = claim["spec"]["resources"]["requests"]["storage"]
    if parse_quantity(size_now) < parse_quantity(size):
        what = f"the volume exists already, with {size_now}"
        fix = f'`size="{size_now}"`, or delete it first, with all that is on it'
        raise BadInput(what, about=f"{about(kube, claim['metadata']['name'])}, size={size}", fix=fix)


def _choose_mode(kube: Kube, claim: str, name: str | None, mode: str | None, size: str) -> str:
    """Choose the access mode; raise BadInput without a StorageClass, for which a claim would only wait."""
    classes = storage_class.read_classes(kube)
    if classes is None:  # with rights in a namespace alone; a dry run says which class is the default
        name = name or default_class(kube, claim, size=size)
        if name is None:
            raise _no_class(
                kube, name, "one that its administrator names, here or as TRAINYARD_STORAGE_CLASS"
            )
    else:
        known = sorted(item["metadata"]["name"] for item in classes)
        default = storage_class.default_of(classes)
        if name not in known and (name is not None or default is None):
            raise _no_class(kube, name, f"one of: {', '.join(known) or 'none; install a CSI driver'}")
        name = name or default["metadata"]["name"]  # type: ignore[index]
    nodes = allowed(lambda: list(kube.get_all("Node")))
    count = None if nodes is None else len(nodes)
    return storage_class.choose_access_mode(mode, name, classes, nodes=count, about=about(kube, claim))


def _no_class(kube: Kube, name: str | None, known: str) -> BadInput:
    what = "there is no such StorageClass" if name else "the cluster has no default StorageClass"
    fix = f"set `storage_class=` to {known}"
    return BadInput(what, about=f'storage_class={name!r} in cluster "{kube.cluster}"', fix=fix)


def default_class(kube: Kube, claim: str, *, size: str = "5Gi") -> str | None:
    """Find the default class's name for users who may not read classes: a dry run fills it in."""
    (item,) = manifests.read(config.manifests("volume", "claim.yaml"))
    spec = {"resources": {"requests": {"storage": size}}}  # the namespace may allow no other
    answer = kube.create(merge(item, {"metadata": {"name": claim}, "spec": spec}), dry_run=True)
    name: str | None = answer["spec"].get("storageClassName")
    return name


def _wait_bound(kube: Kube, name: str, timeout: float | None) -> None:
    """Wait until the claim is bound, or waits for its first pod to be."""

    about_claim = f"involvedObject.kind={CLAIM},involvedObject.name={name}"
    specs = (
        WatchSpec(CLAIM, fields=f"metadata.name={name}"),
        WatchSpec("Event", fields=about_claim, optional=True),
    )

    def bound(snapshot: Snapshot) -> bool:
        events = snapshot.get("Event", {}).values()
        reasons = {event.get("reason") for event in events}
        if missing := NO_CLASS.search(" ".join(str(event.get("message")) for event in events)):
            kube.delete(CLAIM, name)
            raise _no_class(kube, missing[1], "an existing class: kubectl get storageclass")
        phases = {(claim.get("status") or {}).get("phase") for claim in snapshot[CLAIM].values()}
        # Without Events it is unknown whether it waits for a provisioner or for its first pod.
        return (
            "Bound" in phases
            or "WaitForFirstConsumer" in reasons
            or (bool(phases) and "Event" not in snapshot)
        )

    def last_words(snapshot: Snapshot) -> str:
        events = sorted(snapshot.get("Event", {}).values(), key=event_time)
        return events[-1].get("message", "") if events else "it is being created"

    with progress(f"volume {name}") as line:
        last = wait(
            watch_objects(kube, *specs),
            until=bound,
            timeout=timeout,
            what="the claim to get its volume",
            about=about(kube, name),
            resume="look at `cluster.events()`; deleting the volume deletes the claim",
            describe=last_words,
            report=line.update,
        )
        claim = last[CLAIM].get(name) or {}
        is_bound = (claim.get("status") or {}).get("phase") == "Bound"
        waits = "bound when a pod uses it" + (" (WaitForFirstConsumer)" if "Event" in last else ", or later")
        line.done("exists" if is_bound else waits)
