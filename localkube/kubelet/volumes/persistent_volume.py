"""Find the directory of a pod's PersistentVolumeClaim.

The controller manager binds claims, ``provisioner.py`` creates their volumes.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from localkube.api_client import Api, find
from localkube.api_path import Object, api_path
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.quantity import quantity, whole
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.volumes.object_cache import Access
from localkube.kubelet.work_pools import MEASURES
from localkube.runtime.path_resolution import opened
from localkube.runtime.trees import disk_blocks, walk

# Directories and the last blocks of files take more than is written to them.
SLACK = 1 << 20


@dataclass(frozen=True)
class ClaimDirectory:
    """A claim's directory on the host.

    Attributes:
        claim: The API's path of the claim.
        name: The claim's name.
        size: Its capacity in bytes; None for a volume that was not provisioned here.
    """

    path: Path
    read_only: bool
    claim: str = ""
    name: str = ""
    size: int | None = None

    def is_overfull(self, used: int) -> bool:
        return self.size is not None and used > self.size + SLACK


class ClaimResolver:
    """Resolves claims, and tracks their users and their usage.

    No file system enforces a claim's size: ``pods/eviction.py`` measures the usage.

    Args:
        provisioned: The directory of the volumes that were provisioned here.
    """

    def __init__(self, access: Access, *, provisioned: Path | None = None) -> None:
        self._access, self._provisioned = access, provisioned
        self._users: dict[str, str] = {}
        self._mounted: dict[str, dict[str, ClaimDirectory]] = {}
        self._stored: dict[Path, int] = {}

    async def locate(self, pod: Object, spec: Object) -> ClaimDirectory:
        api = self._access(pod["spec"].get("nodeName", ""))
        claim = await self._claim(api, pod, spec)
        volume = await self._volume(api, claim)
        if _is_device(pod, spec["name"]):
            raise ConfigError(
                f"volume {spec['name']} has volumeMode Filesystem, but is specified in volumeDevices"
            )
        path = _directory(volume)
        modes = claim["spec"].get("accessModes") or []
        if "ReadWriteOncePod" in modes:
            self._reserve(claim["metadata"]["uid"], pod["metadata"]["uid"], claim["metadata"]["name"])
        source = spec.get("persistentVolumeClaim") or {}
        read_only = bool(source.get("readOnly")) or modes == ["ReadOnlyMany"]
        name, size = claim["metadata"]["name"], self._size(claim, path)
        namespace = claim["metadata"]["namespace"]
        api_claim = api_path("v1/persistentvolumeclaims", namespace=namespace, name=name)
        directory = ClaimDirectory(path, read_only, api_claim, name, size)
        if not read_only:
            await self._refuse_overfull(directory)
            self._mounted.setdefault(pod["metadata"]["uid"], {})[spec["name"]] = directory
        return directory

    def written(self, uid: str) -> list[ClaimDirectory]:
        """List the claims provisioned here to which a pod may write."""
        return [claim for claim in self._mounted.get(uid, {}).values() if claim.size is not None]

    def stored(self, claim: ClaimDirectory) -> int:
        """Get the usage of a claim in bytes when it was last measured."""
        return self._stored.get(claim.path, 0)

    def record_usage(self, claim: ClaimDirectory, used: int) -> None:
        """Record the usage of a claim."""
        self._stored[claim.path] = used

    async def excess(self, claim: ClaimDirectory, *, node: str) -> tuple[ClaimDirectory, Object] | None:
        """Read the claim again, which may have been expanded; None if it is within its size.

        Args:
            node: A node on which a pod uses it.
        """
        item = await find(self._access(node), claim.claim)
        if item is None:
            return None
        newest = replace(claim, size=self._size(item, claim.path))
        return (newest, item) if newest.is_overfull(self.stored(claim)) else None

    def _size(self, claim: Object, path: Path) -> int | None:
        capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
        is_ours = self._provisioned is not None and self._provisioned in path.resolve().parents
        return whole(capacity) if capacity and is_ours else None

    async def _refuse_overfull(self, claim: ClaimDirectory) -> None:
        """Measure an overfull claim again: another pod may have deleted files in it."""
        if not claim.is_overfull(self.stored(claim)):
            return
        self.record_usage(claim, await MEASURES.sum(disk_blocks(claim.path)))
        if claim.is_overfull(self.stored(claim)):
            used = quantity(self.stored(claim), binary=True)
            raise ConfigError(
                f'persistentvolumeclaim "{claim.name}" holds {used} and its size is '
                f"{quantity(claim.size or 0, binary=True)}: expand it (spec.resources.requests.storage), "
                "delete it, or mount it with readOnly to copy its files"
            )

    def forget(self, uid: str) -> None:
        """Release the pod's claims."""
        self._users = {claim: user for claim, user in self._users.items() if user != uid}
        self._mounted.pop(uid, None)
        used = {claim.path for claims in self._mounted.values() for claim in claims.values()}
        self._stored = {path: size for path, size in self._stored.items() if path in used or path.is_dir()}

    async def _claim(self, api: Api, pod: Object, spec: Object) -> Object:
        metadata = pod["metadata"]
        is_ephemeral = "ephemeral" in spec
        name = (
            f"{metadata['name']}-{spec['name']}"
            if is_ephemeral
            else spec["persistentVolumeClaim"]["claimName"]
        )
        path = api_path("v1/persistentvolumeclaims", namespace=metadata["namespace"], name=name)
        claim = await find(api, path)
        if claim is None:
            raise ConfigError(f'persistentvolumeclaim "{name}" not found')
        owners = [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or []]
        if is_ephemeral and metadata["uid"] not in owners:
            raise ConfigError(f'persistentvolumeclaim "{name}" was not made for this pod: rename one of them')
        if claim["metadata"].get("deletionTimestamp") and not _has_run(pod):
            raise ConfigError(f'persistentvolumeclaim "{name}" is being deleted')
        if (claim.get("status") or {}).get("phase") != "Bound" or not claim["spec"].get("volumeName"):
            raise ConfigError(f'persistentvolumeclaim "{name}" is not bound yet')
        return claim

    async def _volume(self, api: Api, claim: Object) -> Object:
        name = claim["spec"]["volumeName"]
        volume = await find(api, api_path("v1/persistentvolumes", name=name))
        if volume is None:
            raise ConfigError(f'persistentvolume "{name}" of the claim is gone')
        if not _is_bound_to(volume, claim):
            raise ConfigError(f'persistentvolume "{name}" is bound to another claim')
        if _class(volume) != _class(claim):
            raise ConfigError(f'persistentvolume "{name}" has another storage class than its claim')
        if volume["spec"].get("volumeMode") == "Block":
            raise ConfigError("volumeMode Block needs a block device; use Filesystem in a local cluster")
        return volume

    def _reserve(self, claim: str, pod: str, name: str) -> None:
        if self._users.setdefault(claim, pod) != pod:
            raise ConfigError(f'persistentvolumeclaim "{name}" is ReadWriteOncePod and in use by another pod')


def _has_run(pod: Object) -> bool:
    """Check whether a pod has started before, with an earlier kubelet: its claims are protected."""
    status = pod.get("status") or {}
    lists = (status.get(kind) or [] for kind in ("initContainerStatuses", "containerStatuses"))
    return any(container.get("containerID") for containers in lists for container in containers)


def _is_device(pod: Object, volume: str) -> bool:
    """Check whether a container uses a volume as a block device."""
    devices = (device for _, container in containers(pod) for device in container.get("volumeDevices") or ())
    return any(device["name"] == volume for device in devices)


def _is_bound_to(volume: Object, claim: Object) -> bool:
    """Check the volume's side of the binding, because users write claims, but only controllers volumes."""
    reference, metadata = volume["spec"].get("claimRef") or {}, claim["metadata"]
    return all(reference.get(key) == metadata[key] for key in ("namespace", "name", "uid"))


def _class(item: Object) -> str:
    annotated = (item["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return annotated or item["spec"].get("storageClassName") or ""


def _directory(volume: Object) -> Path:
    spec = volume["spec"]
    for kind in ("hostPath", "local"):
        if kind in spec:
            path = Path(spec[kind]["path"])
            if not path.exists():
                raise ConfigError(
                    f"the directory {path} of persistentvolume {volume['metadata']['name']} is missing"
                )
            return path
    common = {"accessModes", "capacity", "claimRef", "persistentVolumeReclaimPolicy", "storageClassName"}
    kinds = ", ".join(sorted(set(spec) - common - {"volumeMode", "nodeAffinity", "mountOptions"}))
    raise ConfigError(f"persistent volumes of kind {kinds} need a driver; use the storage class standard")


def set_group(root: Path, group: int, *, root_decides: bool = False) -> Iterator[None]:
    """Make a group the owner of a volume, file by file, with permission to read and write (fsGroup).

    Args:
        root_decides: Skip it if the volume's root directory has the group already (OnRootMismatch).
    """
    status = root.stat()
    if root_decides and (status.st_gid, status.st_mode & 0o2070) == (group, 0o2070):
        return
    for entry in walk(root):
        with contextlib.suppress(FileNotFoundError):
            _set_group(entry.name, entry.directory, group)
        yield
    with opened(root) as top:
        _set_group(".", top, group)


def _set_group(name: str, directory: int, group: int) -> None:
    """Change a file's group by its descriptor, because another pod may replace the file."""
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            os.chown(name, -1, group, dir_fd=directory, follow_symlinks=False)
            return
        os.chown(f"/proc/self/fd/{place}", -1, group)
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            added = 0o2770 if stat.S_ISDIR(mode) else 0o660
            os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(mode) | added)
    finally:
        os.close(place)
