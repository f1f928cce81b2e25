"""Local ephemeral storage of pods, and its limits.

As in the kubelet: an emptyDir's ``sizeLimit``, a container's ``ephemeral-storage`` limit (its writable layer
and its logs), and a pod's sum of its containers' limits (emptyDirs and ConfigMaps included). The kernel
limits emptyDirs in memory.

Source:
https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#resource-emphemeralstorage-consumption
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.kubelet.quantity import quantity, whole
from localkube.kubelet.resources.unlinked_files import unlinked
from localkube.kubelet.status.container_state import containers

STORAGE = "ephemeral-storage"


@dataclass(frozen=True)
class StorageUsage:
    """A pod's bytes on disk: by emptyDir, and by container (writable layer and logs)."""

    volumes: Mapping[str, int] = field(default_factory=dict)
    containers: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.volumes.values()) + sum(self.containers.values())


def is_limited(pod: Mapping[str, Any]) -> bool:
    return any(size for _, size in _sized(pod)) or any(limit for _, limit in _limits(pod))


async def measure(
    pod: Mapping[str, Any],
    directory: Path,
    pids: Mapping[str, int],
    *,
    count: Callable[[Path], Awaitable[int]],
    in_bytes: bool = True,
) -> StorageUsage:
    """Measure a pod's storage.

    Args:
        directory: The directory of the pod's files.
        pids: The first processes of its running containers.
        count: Counts bytes, or files, in a directory.
        in_bytes: Include unlinked files that are still open.
    """
    names = [*(name for name, _ in _sized(pod)), *_from_api(pod)]
    places = {name: directory / "volumes" / name for name in names}
    volumes = {name: await count(place) for name, place in places.items() if place.is_dir()}
    sizes = {}
    for _, container in containers(pod):
        name = container["name"]
        sizes[name] = await count(directory / "logs" / name)
        layers = list((directory / "writable").glob(f"{name}.*"))
        for layer in layers:
            sizes[name] += await count(layer)
        if not in_bytes or name not in pids:
            continue
        if not any((layer / part).exists() for layer in layers for part in ("upper", "root")):
            sizes[name] += written(pids[name])
        for volume, size in unlinked(container, pids[name], directory).items():
            if not volume:
                sizes[name] += size
            elif volume in volumes:
                volumes[volume] += size
    return StorageUsage(volumes, sizes)


def excess(pod: Mapping[str, Any], stored: StorageUsage) -> str | None:
    """Write the kubelet's message for an eviction; None if the pod is within its limits."""
    for name, size in _sized(pod):
        if size and stored.volumes.get(name, 0) > whole(size):
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{size}". '
    limits = [(name, limit) for name, limit in _limits(pod) if limit]
    together = sum(whole(limit) for _, limit in limits)
    if limits and stored.total > together:
        size = quantity(together, binary=True)
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {size}. "
    for name, limit in limits:
        if whole(limit) and stored.containers.get(name, 0) > whole(limit):
            return f'Container {name} exceeded its local ephemeral storage limit "{limit}". '
    return None


def written(pid: int) -> int:
    """Measure the data that a container has written to its root, which is a tmpfs."""
    try:
        if os.stat("/").st_dev == os.stat(f"/proc/{pid}/root/").st_dev:
            return 0  # in plain mode
        file_system = os.statvfs(f"/proc/{pid}/root/")
    except OSError:  # the container has ended meanwhile
        return 0
    return (file_system.f_blocks - file_system.f_bfree) * file_system.f_frsize


def _sized(pod: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Name and size limit of the emptyDirs on disk."""
    volumes = [volume for volume in pod["spec"].get("volumes") or [] if "emptyDir" in volume]
    sources = [(volume["name"], volume["emptyDir"] or {}) for volume in volumes]
    return [(name, source.get("sizeLimit")) for name, source in sources if source.get("medium") != "Memory"]


def _from_api(pod: Mapping[str, Any]) -> list[str]:
    """Name the volumes whose files come from the API; volumes in memory are in another directory."""
    return [
        volume["name"]
        for volume in pod["spec"].get("volumes") or []
        if any(kind in volume for kind in ("configMap", "downwardAPI", "projected"))
    ]


def _limits(pod: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    listed = pod["spec"]["containers"]
    return [(c["name"], ((c.get("resources") or {}).get("limits") or {}).get(STORAGE)) for c in listed]
