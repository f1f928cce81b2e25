"""Evict pods: those that exceed their local storage limits, and others while the machine is short.

All nodes share one machine. One pod of the whole cluster is evicted at a time, the one that a kubelet would
choose first were they all on its node; the next is chosen when its processes and files are gone.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.kubelet.pods.pod import PodWorker
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.quantity import quantity, whole
from localkube.kubelet.resources.allocation import request
from localkube.kubelet.resources.limits import Limits, tree
from localkube.kubelet.resources.local_storage import excess, is_limited, measure
from localkube.kubelet.resources.pressure import SIGNALS, Observation, Pressure, Threshold, is_critical
from localkube.kubelet.resources.proc_usage import ProcessTable
from localkube.runtime.trees import disk_usage, file_count

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
LOOK_SECONDS, CLEANUP_SECONDS = 10.0, 30.0


@dataclass(frozen=True)
class PodUsage:
    """What a pod uses of one resource: all of it, and what each of its containers does."""

    pod: Object
    used: int
    containers: Mapping[str, int] = field(default_factory=dict)


def ranked(usages: Iterable[PodUsage], resource: str) -> list[PodUsage]:
    """Order pods for eviction: those above their requests, by priority, by how much they are above.

    Processes are not requested: there the priority comes first.
    """

    def key(usage: PodUsage) -> tuple:
        above = usage.used - request(usage.pod, resource)
        priority = usage.pod["spec"].get("priority") or 0
        return (priority, -usage.used) if resource == "pids" else (above <= 0, priority, -above)

    return sorted(usages, key=key)


def eviction_message(usage: PodUsage, threshold: Threshold, seen: Observation) -> str:
    """Say why a pod is evicted, in the kubelet's words."""
    resource = SIGNALS[threshold.signal][1]
    binary = resource in ("memory", "ephemeral-storage")
    least, left = (
        quantity(value, binary=binary) for value in (threshold.quantity(seen.capacity), seen.available)
    )
    text = f"The node was low on resource: {resource}. Threshold quantity: {least}, available: {left}. "
    if not binary:
        return text
    spec = usage.pod["spec"]
    for container in (*spec["containers"], *(spec.get("initContainers") or [])):
        name, used = container["name"], usage.containers.get(container["name"], 0)
        requested = ((container.get("resources") or {}).get("requests") or {}).get(resource, "0")
        if used > whole(requested):
            amount = quantity(used, binary=True)
            text += f"Container {name} was using {amount}, request is {requested}, "
            text += f"has larger consumption of {resource}. "
    return text


class EvictionManager:
    """Looks at pods and machine every ten seconds.

    Args:
        warn: Called with reason and message of an Event on the nodes.
    """

    def __init__(
        self,
        files: PodFiles,
        *,
        pods: Callable[[], Iterable[PodWorker]],
        pressure: Pressure,
        limits: Limits,
        warn: Callable[[str, str], None],
    ) -> None:
        self._files, self._pods, self._pressure, self._limits = files, pods, pressure, limits
        self._warn = warn

    async def run(self) -> None:
        while True:
            evicted = await self._evict_above_limits()
            met = self._pressure.look()
            if met and not evicted and await self._relieve(*met[0]):
                continue
            await asyncio.sleep(LOOK_SECONDS)

    def _active(self) -> list[PodWorker]:
        return [pod for pod in self._pods() if not pod.finished and not pod.stopping.is_set()]

    # Pods above their own limits.

    async def _evict_above_limits(self) -> bool:
        """Evict the pods that store more than they may; True if there were some."""
        evicted = False
        for worker in [active for active in self._active() if is_limited(active.pod)]:
            try:
                stored = await asyncio.to_thread(
                    measure, worker.pod, self._files.pods / worker.uid, _pids(worker)
                )
            except OSError as error:  # a container has ended meanwhile
                log.debug("storage of pod %s: %s", worker.uid, error)
                continue
            message = excess(worker.pod, stored)
            if message and not is_critical(worker.pod):
                worker.evict(message)
                evicted = True
        return evicted

    # Pods of a machine that is short of something.

    async def _relieve(self, threshold: Threshold, seen: Observation) -> bool:
        """Reclaim some of what the machine is low on; False when no pod is left that may be evicted."""
        condition, resource = SIGNALS[threshold.signal]
        self._warn("EvictionThresholdMet", f"Attempting to reclaim {resource}")
        if condition == "DiskPressure":
            for worker in [pod for pod in self._pods() if pod.finished]:
                await self._files.remove_written(worker.uid)
            if not any(SIGNALS[threshold.signal][0] == condition for threshold, _ in self._pressure.look()):
                return True
        usages = {worker.uid: await self._usage(worker, resource) for worker in self._active()}
        for usage in ranked(usages.values(), resource):
            uid = usage.pod["metadata"]["uid"]
            worker = next((active for active in self._active() if active.uid == uid), None)
            if worker is None or is_critical(worker.pod):
                continue
            log.warning("evicting pod %s to reclaim %s", uid, resource)
            worker.evict(eviction_message(usage, threshold, seen))
            await self._gone(worker)
            return True
        return False

    async def _usage(self, worker: PodWorker, resource: str) -> PodUsage:
        if resource == "memory":
            memory = await asyncio.to_thread(self._memory, worker)
            return PodUsage(worker.pod, sum(memory.values()), memory)
        if resource == "pids":
            count = self._limits.processes(worker.uid)
            return PodUsage(worker.pod, await asyncio.to_thread(_threads, worker) if count is None else count)
        count = file_count if resource == "inodes" else disk_usage
        directory = self._files.pods / worker.uid
        stored = await asyncio.to_thread(measure, worker.pod, directory, _pids(worker), count=count)
        return PodUsage(worker.pod, stored.total, stored.containers)

    def _memory(self, worker: PodWorker) -> dict[str, int]:
        processes, memory = None, {}
        for name, process in [process for process in worker.processes.items() if process[1].running]:
            usage = self._limits.usage(process.identity)
            if usage is None:
                processes = processes or ProcessTable()
                usage = processes.usage(process.pid)
            memory[name] = usage.memory if usage else 0
        return memory

    async def _gone(self, worker: PodWorker) -> None:
        """Wait for the end of an evicted pod's processes, and remove its files."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                await worker.quiet.wait()
        await self._files.remove_written(worker.uid)


def _pids(worker: PodWorker) -> dict[str, int]:
    return {name: process.pid for name, process in worker.processes.items() if process.running}


def _threads(worker: PodWorker) -> int:
    pids = [pid for first in _pids(worker).values() for pid in tree(first)]
    return sum(len(list(Path(f"/proc/{pid}/task").glob("*"))) for pid in pids)
