"""The provisioner of the StorageClass ``standard``: a directory for each PersistentVolumeClaim.

The controller manager binds claims to volumes; this creates, expands and reclaims the volumes. All nodes
share one disk, so every access mode works on every node. Sizes are recorded, not enforced; block volumes,
clones and selectors are refused by an Event.

Source: https://kubernetes.io/docs/concepts/storage/dynamic-provisioning/
"""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer, object_key
from localkube.api_path import Object, api_path
from localkube.errors import ApiError
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.quantity import parse
from localkube.kubelet.work_pools import WALKS
from localkube.runtime.trees import removal

log = logging.getLogger(__name__)

PROVISIONER = "trainyard.local/directory"
CLASS, CLAIM, VOLUME = "storage.k8s.io/v1/storageclasses", "v1/persistentvolumeclaims", "v1/persistentvolumes"
CLASSES, CLAIMS, VOLUMES = api_path(CLASS), api_path(CLAIM), api_path(VOLUME)
# Set by the controller manager once this provisioner should create the volume.
REQUESTED_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
LABEL = "trainyard/provisioner"
RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 30.0)
STANDARD = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        "labels": {LABEL: "directory"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
    "allowVolumeExpansion": True,
}


class ProvisioningError(Exception):
    """The claim requests a feature that a directory does not have."""


def needs_volume(claim: Object) -> bool:
    """Check whether the controller manager waits for our volume for the claim."""
    if claim["metadata"].get("deletionTimestamp") or claim["spec"].get("volumeName"):
        return False
    return (claim["metadata"].get("annotations") or {}).get(REQUESTED_PROVISIONER) == PROVISIONER


def needs_expansion(claim: Object) -> bool:
    """Check whether a bound claim requests more than its recorded capacity."""
    capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    return capacity is not None and parse(_requested(claim)) > parse(capacity)


def is_ours(volume: Object) -> bool:
    """Check whether a volume was provisioned here and is deleted with its claim."""
    annotations = volume["metadata"].get("annotations") or {}
    wants_deletion = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    return annotations.get(PROVISIONED_BY) == PROVISIONER and wants_deletion


def volume_for(claim: Object, storage_class: Object, path: Path) -> dict[str, Any]:
    """Create the v1.PersistentVolume for a claim, bound to it."""
    metadata, spec = claim["metadata"], claim["spec"]
    if spec.get("volumeMode") == "Block":
        raise ProvisioningError("volumeMode Block is not available in a local cluster: use Filesystem")
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        raise ProvisioningError("a dataSource is not available in a local cluster: copy the files in a pod")
    if spec.get("selector"):
        raise ProvisioningError(
            "a claim with a selector gets no new volume: create one, or leave the selector out"
        )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": path.name,
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "labels": {LABEL: "directory"},
        },
        "spec": {
            "capacity": {"storage": _requested(claim)},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": storage_class["metadata"]["name"],
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(path), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


class Provisioner:
    """The controller."""

    def __init__(self, api: Api, *, directory: Path) -> None:
        self._api = api
        self._directory = directory
        self._events = EventRecorder(api, component=PROVISIONER)
        self._claims = Informer(api, CLAIMS)
        self._volumes = Informer(api, VOLUMES)
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._waiting: set[tuple[str, str]] = set()
        self._failures: dict[tuple[str, str], int] = {}
        self._claims.subscribe(self._claim_changed)
        self._volumes.subscribe(self._volume_changed)

    async def run(self) -> None:
        """Create the StorageClass, and provision, expand and reclaim volumes."""
        await self._create_class()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run())
            group.create_task(self._volumes.run())
            group.create_task(self._work())
            group.create_task(self._events.run())

    async def _create_class(self) -> None:
        for pause in itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1])):
            try:
                await self._api.post(CLASSES, STANDARD)
                return
            except ApiError as error:
                if error.status == 409:
                    return
                log.warning("storage class standard: %s; again in %s s", error, pause)
                await asyncio.sleep(pause)

    def _claim_changed(self, change: str, claim: Object, before: Object | None) -> None:
        key = object_key(claim)
        if change == "DELETED":
            self._failures.pop(key, None)
        elif needs_volume(claim) or needs_expansion(claim):
            self._enqueue(key)

    def _volume_changed(self, change: str, volume: Object, before: Object | None) -> None:
        released = (volume.get("status") or {}).get("phase") in ("Released", "Failed")
        if is_ours(volume) and (released or change == "DELETED"):
            self._enqueue(("", volume["metadata"]["name"]))

    def _enqueue(self, key: tuple[str, str]) -> None:
        if key not in self._waiting:
            self._waiting.add(key)
            self._queue.put_nowait(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._waiting.discard(key)
            try:
                await (self._reclaim(key[1]) if not key[0] else self._serve(key))
            except Exception as error:  # noqa: BLE001 - one bad claim does not end the others
                failures = self._failures.get(key, 0)
                self._failures[key] = failures + 1
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                log.warning("volume for %s: %s; again in %s s", "/".join(filter(None, key)), error, pause)
                asyncio.get_running_loop().call_later(pause, self._enqueue, key)
            else:
                self._failures.pop(key, None)

    async def _serve(self, key: tuple[str, str]) -> None:
        """Provision a claim's volume, or expand it."""
        claim = self._claims.store.get(key)
        if claim is None:
            return
        try:
            if needs_volume(claim):
                name = await self._provision(claim)
                message = f"Successfully provisioned volume {name}"
                self._events.record(claim, "ProvisioningSucceeded", message)
            elif needs_expansion(claim):
                await self._expand(claim)
        except ProvisioningError as error:
            self._events.record(claim, "ProvisioningFailed", str(error), warning=True)
        except (ApiError, OSError) as error:
            message = f"failed to provision volume: {error}"
            self._events.record(claim, "ProvisioningFailed", message, warning=True)
            raise

    async def _provision(self, claim: Object) -> str:
        storage_class = await self._api.get(api_path(CLASS, name=claim["spec"]["storageClassName"]))
        path = self._directory / f"pvc-{claim['metadata']['uid']}"
        volume = volume_for(claim, storage_class, path)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        try:
            await self._api.post(VOLUMES, volume)
        except ApiError as error:
            if error.status != 409:  # created just before a restart
                raise
        return path.name

    async def _expand(self, claim: Object) -> None:
        volume = self._volumes.store.get(("", claim["spec"]["volumeName"]))
        if volume is None or (volume["metadata"].get("annotations") or {}).get(PROVISIONED_BY) != PROVISIONER:
            return
        capacity = {"storage": _requested(claim)}
        path = api_path(VOLUME, name=volume["metadata"]["name"])
        await self._api.patch(path, {"spec": {"capacity": capacity}}, kind="merge")
        namespace, name = object_key(claim)
        path = api_path(CLAIM, namespace=namespace, name=name, subresource="status")
        await self._api.patch(path, {"status": {"capacity": capacity}}, kind="merge")
        message = f"Resize to {capacity['storage']} recorded"
        self._events.record(claim, "VolumeResizeSuccessful", message)

    async def _reclaim(self, name: str) -> None:
        """Delete the directory and the volume of a deleted claim."""
        volume = self._volumes.store.get(("", name))
        if volume is not None and (volume.get("status") or {}).get("phase") not in ("Released", "Failed"):
            return
        if not name.startswith("pvc-"):
            log.warning("volume %s was not named by this provisioner: its directory is not removed", name)
            return
        await WALKS.walk(removal(self._directory / name))
        if volume is not None:
            await self._api.delete(api_path(VOLUME, name=name))


def _requested(claim: Object) -> str:
    return claim["spec"]["resources"]["requests"]["storage"]
