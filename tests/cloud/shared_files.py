"""A driver of shared files in a local cluster that stands behind a simulated cloud's.

It does for claims of a cloud's class what the cloud's own driver does: it makes a volume that all nodes can
mount. Here that is a directory of this machine.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

ASKED_FOR = "volume.kubernetes.io/storage-provisioner"
MADE_BY = "pv.kubernetes.io/provisioned-by"
LOOK_SECONDS = 2


class SharedFiles:
    """The driver.

    Args:
        kubeconfig: The local cluster's administrator's.
        folder: Where the volumes are.
        driver: Its name: ``efs.csi.aws.com``.
        check: Returns why a class's parameters make no volume, or "".
    """

    def __init__(
        self, kubeconfig: Path, folder: Path, *, driver: str, check: Callable[[Mapping[str, str]], str]
    ) -> None:
        self._folder, self._driver, self._check = folder, driver, check
        api = config.new_client_from_config(str(kubeconfig))
        self._core, self._storage = client.CoreV1Api(api), client.StorageV1Api(api)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"driver {driver}", daemon=True)
        self.refused: list[str] = []

    def __enter__(self) -> "SharedFiles":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LOOK_SECONDS * 10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(ApiException, HTTPError):  # an API server that is busy, or gone with its cluster
                self._reclaim()
                claims = self._core.list_persistent_volume_claim_for_all_namespaces
                for event in watch.Watch().stream(claims, timeout_seconds=LOOK_SECONDS):
                    self._serve(event["object"])
            self._stopping.wait(0.1)

    def _serve(self, claim: client.V1PersistentVolumeClaim) -> None:
        provisioner = (claim.metadata.annotations or {}).get(ASKED_FOR)
        if provisioner != self._driver or claim.spec.volume_name or claim.metadata.deletion_timestamp:
            return
        storage_class = self._storage.read_storage_class(claim.spec.storage_class_name)
        if why := self._check(storage_class.parameters or {}):
            self.refused.append(why)
            return
        name = f"pvc-{claim.metadata.uid}"
        (self._folder / name).mkdir(exist_ok=True)
        (self._folder / name).chmod(0o777)
        with suppress(ApiException):  # made already
            self._core.create_persistent_volume(self._volume(name, claim, storage_class))

    def _volume(
        self, name: str, claim: client.V1PersistentVolumeClaim, storage_class: client.V1StorageClass
    ) -> dict:
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        reference |= {"name": claim.metadata.name, "namespace": claim.metadata.namespace}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {MADE_BY: self._driver}},
            "spec": {
                "capacity": {"storage": claim.spec.resources.requests["storage"]},
                "accessModes": claim.spec.access_modes,
                "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
                "storageClassName": storage_class.metadata.name,
                "hostPath": {"path": str(self._folder / name), "type": "Directory"},
                "claimRef": reference | {"uid": claim.metadata.uid},
            },
        }

    def _reclaim(self) -> None:
        for item in self._core.list_persistent_volume().items:
            mine = (item.metadata.annotations or {}).get(MADE_BY) == self._driver
            if mine and item.status.phase in ("Released", "Failed"):
                self._core.delete_persistent_volume(item.metadata.name)
                shutil.rmtree(self._folder / item.metadata.name, ignore_errors=True)
