"""Find the directory of a pod's PersistentVolumeClaim.

The controller manager binds claims, ``provisioner.py`` creates their volumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.api_client import Api, find

Object = Mapping[str, Any]


class ClaimError(Exception):
    """The claim is not bound, or its volume cannot be used."""


@dataclass(frozen=True)
class ClaimDirectory:
    """A claim's directory on the host."""

    path: Path
    read_only: bool


class ClaimResolver:
    """Resolves claims, and tracks the users of ReadWriteOncePod claims."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._users: dict[str, str] = {}

    async def locate(self, pod: Object, spec: Object) -> ClaimDirectory:
        """Find the directory of a ``persistentVolumeClaim`` or ``ephemeral`` volume."""
        claim = await self._claim(pod, spec)
        volume = await self._volume(claim)
        path = _directory(volume)
        modes = claim["spec"].get("accessModes") or []
        if "ReadWriteOncePod" in modes:
            self._reserve(claim["metadata"]["uid"], pod["metadata"]["uid"], claim["metadata"]["name"])
        wants = spec.get("persistentVolumeClaim") or {}
        read_only = bool(wants.get("readOnly")) or modes == ["ReadOnlyMany"]
        return ClaimDirectory(path, read_only)

    def forget(self, uid: str) -> None:
        """Release the pod's ReadWriteOncePod claims."""
        self._users = {claim: user for claim, user in self._users.items() if user != uid}

    async def _claim(self, pod: Object, spec: Object) -> Object:
        metadata = pod["metadata"]
        is_ephemeral = "ephemeral" in spec
        name = (
            f"{metadata['name']}-{spec['name']}"
            if is_ephemeral
            else spec["persistentVolumeClaim"]["claimName"]
        )
        claim = await find(
            self._api, f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{name}"
        )
        if claim is None:
            raise ClaimError(f'persistentvolumeclaim "{name}" not found')
        owners = [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or []]
        if is_ephemeral and metadata["uid"] not in owners:
            raise ClaimError(f'persistentvolumeclaim "{name}" was not made for this pod: rename one of them')
        if (claim.get("status") or {}).get("phase") != "Bound" or not claim["spec"].get("volumeName"):
            raise ClaimError(f'persistentvolumeclaim "{name}" is not bound yet')
        return claim

    async def _volume(self, claim: Object) -> Object:
        name = claim["spec"]["volumeName"]
        volume = await find(self._api, f"/api/v1/persistentvolumes/{name}")
        if volume is None:
            raise ClaimError(f'persistentvolume "{name}" of the claim is gone')
        if (volume["spec"].get("claimRef") or {}).get("uid") != claim["metadata"]["uid"]:
            raise ClaimError(f'persistentvolume "{name}" is bound to another claim')
        if volume["spec"].get("volumeMode") == "Block":
            raise ClaimError("volumeMode Block needs a block device; use Filesystem in a local cluster")
        return volume

    def _reserve(self, claim: str, pod: str, name: str) -> None:
        if self._users.setdefault(claim, pod) != pod:
            raise ClaimError(f'persistentvolumeclaim "{name}" is ReadWriteOncePod and in use by another pod')


def _directory(volume: Object) -> Path:
    spec = volume["spec"]
    for kind in ("hostPath", "local"):
        if kind in spec:
            path = Path(spec[kind]["path"])
            if not path.exists():
                raise ClaimError(
                    f"the directory {path} of persistentvolume {volume['metadata']['name']} is missing"
                )
            return path
    common = {"accessModes", "capacity", "claimRef", "persistentVolumeReclaimPolicy", "storageClassName"}
    kinds = ", ".join(sorted(set(spec) - common - {"volumeMode", "nodeAffinity", "mountOptions"}))
    raise ClaimError(f"persistent volumes of kind {kinds} need a driver; use the storage class standard")
