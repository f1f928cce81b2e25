"""Evict pods that exceed their local storage limits, checked every ten seconds.

As in the kubelet: an emptyDir's ``sizeLimit``, a container's ``ephemeral-storage`` limit (its writable layer
and its logs), and a pod's sum of its containers' limits (emptyDirs included). The writable layer is a tmpfs
here. The kernel limits emptyDirs in memory.

Source:
https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#resource-emphemeralstorage-consumption
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.kubelet.pods.context import SCRATCH
from localkube.kubelet.pods.pod import PodWorker
from localkube.kubelet.quantity import quantity, whole

LOOK_SECONDS = 10.0
CRITICAL = 2_000_000_000
STORAGE = "ephemeral-storage"


@dataclass(frozen=True)
class StorageUsage:
    """A pod's bytes on disk: by emptyDir, and by container (writable layer and logs)."""

    volumes: Mapping[str, int] = field(default_factory=dict)
    containers: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.volumes.values()) + sum(self.containers.values())


class EvictionManager:
    """Checks the pods that have storage limits."""

    def __init__(
        self,
        directory: Path,
        *,
        pods: Callable[[], Iterable[PodWorker]],
    ) -> None:
        self._directory, self._pods = directory, pods
        self._seen: dict[str, int] = {}

    def used(self, uid: str) -> int | None:
        """The pod's bytes at the last check; None for pods without limits."""
        return self._seen.get(uid)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            seen = {}
            for worker in [each for each in self._pods() if not each.finished and is_limited(each.pod)]:
                pids = {name: process.pid for name, process in worker.processes.items() if process.running}
                stored = await asyncio.to_thread(measure, worker.pod, self._directory / worker.uid, pids)
                seen[worker.uid] = stored.total
                message = excess(worker.pod, stored)
                if message and worker.pod["spec"].get("priority", 0) < CRITICAL:
                    worker.evict(message)
            self._seen = seen


def is_limited(pod: Mapping[str, Any]) -> bool:
    """Check whether a pod has any storage limit."""
    return any(size for _, size in _sized(pod)) or any(limit for _, limit in _limits(pod))


def measure(pod: Mapping[str, Any], directory: Path, pids: Mapping[str, int]) -> StorageUsage:
    """Measure a pod's storage; ``pids`` are the first processes of its running containers."""
    names = [name for name, _ in _sized(pod)]
    volumes = {name: disk_usage(directory / "volumes" / name) for name in names}
    containers = {
        container["name"]: disk_usage(directory / "logs" / container["name"])
        + (written(pids[container["name"]], container) if container["name"] in pids else 0)
        for container in pod["spec"]["containers"]
    }
    return StorageUsage(volumes, containers)


def excess(pod: Mapping[str, Any], stored: StorageUsage) -> str | None:
    """The reason for eviction in the kubelet's words; None when the pod keeps its limits."""
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


def disk_usage(path: Path) -> int:
    """Sum the disk blocks of a directory; files that vanish meanwhile count nothing."""
    total = 0
    try:
        entries = list(os.scandir(path))
    except OSError:
        return 0
    for entry in entries:
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
            if entry.is_dir(follow_symlinks=False):
                total += disk_usage(Path(entry.path))
        except OSError:
            continue
    return total


def written(pid: int, container: Mapping[str, Any]) -> int:
    """Measure a container's writable layer."""
    mounted = {each["mountPath"].rstrip("/") for each in container.get("volumeMounts") or []}
    total, counted = 0, {_device(place) for place in ("/", *SCRATCH)}
    for place in ("/", *SCRATCH):
        path = f"/proc/{pid}/root{place}"
        device = _device(path)
        # Without a root of its own, a container writes into the host's places, which many share.
        if place in mounted or device is None or device in counted:
            continue
        counted.add(device)
        found = os.statvfs(path)
        total += (found.f_blocks - found.f_bfree) * found.f_frsize
    return total


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _sized(pod: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Name and size limit of the emptyDirs on disk."""
    volumes = [volume for volume in pod["spec"].get("volumes") or [] if "emptyDir" in volume]
    sources = [(volume["name"], volume["emptyDir"] or {}) for volume in volumes]
    return [(name, source.get("sizeLimit")) for name, source in sources if source.get("medium") != "Memory"]


def _limits(pod: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    containers = pod["spec"]["containers"]
    return [(c["name"], ((c.get("resources") or {}).get("limits") or {}).get(STORAGE)) for c in containers]
