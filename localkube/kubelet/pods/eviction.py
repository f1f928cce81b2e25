"""Evict pods: those above their local storage limits, and others while the machine is short of resources.

All nodes share one machine. One pod of the whole cluster is evicted at a time, the one that a kubelet would
choose first were they all on its node; the next is chosen when its processes and files are gone.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.api_path import Object
from localkube.errors import ApiError
from localkube.kubelet.heartbeat import work_of
from localkube.kubelet.pods.pod import events
from localkube.kubelet.pods.pod.worker import PodWorker
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.pods.process_guard import count_threads
from localkube.kubelet.quantity import quantity, whole
from localkube.kubelet.resources.allocation import request
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.local_storage import excess, is_limited, measure
from localkube.kubelet.resources.pressure import SIGNALS, Observation, Pressure, Threshold, is_critical
from localkube.kubelet.resources.proc_usage import ProcessTable
from localkube.kubelet.resources.unlinked_files import unlinked
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.volumes.persistent_volume import ClaimDirectory
from localkube.kubelet.work_pools import MEASURES
from localkube.runtime.trees import disk_blocks, inodes

log = logging.getLogger(__name__)

CHECK_SECONDS, CLEANUP_SECONDS = 10.0, 30.0
# The growth of disk usage after which the next measurement may start, and at which it starts at once.
POLL_SECONDS, GROWTH, MUCH_GROWTH = 0.2, 32 << 20, 256 << 20
MIN_BYTES = 1 << 20


@dataclass(frozen=True)
class PodUsage:
    """A pod's usage of one resource, in total and by container.

    ``claims`` maps the names of its PersistentVolumeClaims to their usage and size.
    """

    pod: Object
    used: int
    containers: Mapping[str, int] = field(default_factory=dict)
    claims: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def excess(self) -> int:
        """The usage of its claims beyond their sizes."""
        return sum(max(0, used - size) for used, size in self.claims.values())

    def above(self, resource: str) -> int:
        """Compute the usage beyond the request: of the pod itself, and of its claims."""
        excess = self.used - request(self.pod, resource)
        return max(excess, 0) + self.excess if self.excess else excess


@dataclass(frozen=True, eq=False)
class _Timer:
    """The time until the next measurement; one loop checks all timers, and reads the free disk space once.

    Attributes:
        free: The free disk space at the start.
        min_seconds: The shortest time, unless the disk fills very fast.
    """

    free: int
    begun: float
    min_seconds: float
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def is_due(self, free: int, now: float) -> bool:
        waited, growth = now - self.begun, self.free - free
        if waited >= max(CHECK_SECONDS, self.min_seconds):
            return True
        return growth >= MUCH_GROWTH or (growth >= GROWTH and waited >= self.min_seconds)


def reclaimable(usages: Iterable[PodUsage], *, missing: int) -> list[PodUsage]:
    """Choose the pods whose eviction frees memory or disk space.

    No pod is evicted for less than a megabyte, nor for less than a hundredth of the missing disk space: that
    would not help, and the end of a pod does not free the content of its claims.
    """
    minimum = max(MIN_BYTES, missing // 100)
    return [usage for usage in usages if usage.used >= minimum or usage.excess]


def ranked(usages: Iterable[PodUsage], resource: str) -> list[PodUsage]:
    """Order pods for eviction: those above their requests first, then by priority, then by excess.

    Processes are not requested: there the priority comes first.
    """

    def key(usage: PodUsage) -> tuple[Any, ...]:
        above = usage.above(resource)
        priority = usage.pod["spec"].get("priority") or 0
        return (priority, -usage.used) if resource == "pids" else (above <= 0, priority, -above)

    return sorted(usages, key=key)


def eviction_message(usage: PodUsage, threshold: Threshold, observation: Observation) -> str:
    """Write the message of an eviction, in the kubelet's words."""
    resource = SIGNALS[threshold.signal][1]
    binary = resource in ("memory", "ephemeral-storage")
    minimum, available = (
        quantity(value, binary=binary)
        for value in (threshold.quantity(observation.capacity), observation.available)
    )
    text = f"The node was low on resource: {resource}. "
    text += f"Threshold quantity: {minimum}, available: {available}. "
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
    for name, (stored, size) in usage.claims.items():
        if stored > size:
            amounts = f"{quantity(stored, binary=True)}, its size is {quantity(size, binary=True)}"
            text += f"PersistentVolumeClaim {name} was holding {amounts}. "
    return text


class EvictionManager:
    """Evicts pods; measures pods and machine every ten seconds.

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
        self._has_evicted = False
        self._timers: set[_Timer] = set()

    async def run(self) -> None:
        """Measure pods and machine every ten seconds, and sooner while the disk fills."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._monitor_machine())
            running: dict[str, asyncio.Task[None]] = {}
            while True:
                for worker in self._active():
                    namespace = worker.pod["metadata"]["namespace"]
                    if namespace not in running or running[namespace].done():
                        with work_of(worker.pod):
                            running[namespace] = tasks.create_task(self._measure_namespace(namespace))
                running = {namespace: task for namespace, task in running.items() if not task.done()}
                await asyncio.sleep(POLL_SECONDS)
                free, now = self._free(), time.monotonic()
                for timer in self._timers:
                    if timer.is_due(free, now):
                        timer.over.set()

    async def _monitor_machine(self) -> None:
        while True:
            free, evicted = self._free(), self._has_evicted
            self._has_evicted = False
            met = self._pressure.measure()
            if met and not evicted and await self._reclaim(*met[0]):
                continue
            await self._wait(free, min_seconds=POLL_SECONDS)

    async def _measure_namespace(self, namespace: str) -> None:
        """Measure the pods of a namespace once; other namespaces do not wait for it."""
        start, free = time.monotonic(), self._free()
        workers = [worker for worker in self._active() if worker.pod["metadata"]["namespace"] == namespace]
        evicted = await self._evict_overfull(workers)
        if await self._evict_above_limits(workers) or evicted:
            self._has_evicted = True
        # Measuring takes no more than a sixth of the time.
        await self._wait(free, min_seconds=max(POLL_SECONDS, 5 * (time.monotonic() - start)))

    def _free(self) -> int:
        disk = os.statvfs(self._files.pods)
        return disk.f_bavail * disk.f_frsize

    async def _wait(self, free: int, *, min_seconds: float) -> None:
        """Wait for the next measurement: ten seconds, or until the free disk space has shrunk."""
        timer = _Timer(free, time.monotonic(), min_seconds)
        self._timers.add(timer)
        try:
            await timer.over.wait()
        finally:
            self._timers.discard(timer)

    async def _evict_overfull(self, active: Iterable[PodWorker]) -> bool:
        """Measure the claims that pods write, and evict the pods of those that hold more than their size."""
        users: dict[ClaimDirectory, list[PodWorker]] = {}
        for worker in active:
            for claim in self._files.volumes.claims.written(worker.uid):
                users.setdefault(claim, []).append(worker)
        evicted = False
        for claim, workers in users.items():
            stored = await MEASURES.sum(disk_blocks(claim.path))
            for worker in workers:
                stored += await MEASURES.call(_unlinked_in, claim, worker, self._files.pods)
            self._files.volumes.claims.record_usage(claim, stored)
            with contextlib.suppress(ApiError):
                evicted |= await self._evict_users(claim, workers)
        return evicted

    async def _evict_users(self, claim: ClaimDirectory, workers: Sequence[PodWorker]) -> bool:
        used = self._files.volumes.claims.stored(claim)
        if not claim.is_overfull(used):
            return False
        newest = await self._files.volumes.claims.excess(claim, node=workers[0].node.name)
        if newest is None:
            return False
        directory, item = newest
        size, used_now = (quantity(amount, binary=True) for amount in (directory.size or 0, used))
        message = f'Usage of PersistentVolumeClaim "{claim.name}", {used_now}, exceeds its size "{size}". '
        for worker in workers:
            log.warning("evicting pod %s: %s", worker.uid, message)
            worker.node.events.record(item, "VolumeSizeExceeded", message, warning=True)
            worker.apply(events.evicted, message)
        return True

    def _active(self) -> list[PodWorker]:
        return [pod for pod in self._pods() if not pod.record.finished and not pod.record.stopping]

    # Pods above their own limits.

    async def _evict_above_limits(self, active: Iterable[PodWorker]) -> bool:
        """Evict the pods that store more than they may; True if there were some."""
        evicted = False
        for worker in [worker for worker in active if is_limited(worker.pod)]:
            directory = self._files.pods / worker.uid
            try:
                stored = await measure(worker.pod, directory, _pids(worker), count=_disk_usage)
            except OSError as error:  # a container has ended meanwhile
                log.debug("storage of pod %s: %s", worker.uid, error)
                continue
            message = excess(worker.pod, stored)
            if message and not is_critical(worker.pod):
                worker.apply(events.evicted, message)
                evicted = True
        return evicted

    # Pods of a machine that is short of a resource.

    async def _reclaim(self, threshold: Threshold, observation: Observation) -> bool:
        """Reclaim some of what the machine is low on; False when no pod is left that may be evicted."""
        condition, resource = SIGNALS[threshold.signal]
        self._warn("EvictionThresholdMet", f"Attempting to reclaim {resource}")
        if condition == "DiskPressure":
            for pod in [pod for pod in self._pods() if pod.record.finished]:
                await self._files.remove_written(pod.uid)
            conditions = {SIGNALS[threshold.signal][0] for threshold, _ in self._pressure.measure()}
            if condition not in conditions:
                return True
        missing = threshold.quantity(observation.capacity) - observation.available
        candidates = await self.usages(resource)
        if resource in ("memory", "ephemeral-storage"):
            candidates = reclaimable(candidates, missing=missing if resource == "ephemeral-storage" else 0)
        for usage in ranked(candidates, resource):
            uid = usage.pod["metadata"]["uid"]
            worker = next((active for active in self._active() if active.uid == uid), None)
            if worker is None or is_critical(worker.pod):
                continue
            log.warning("evicting pod %s to reclaim %s", uid, resource)
            worker.apply(events.evicted, eviction_message(usage, threshold, observation))
            await self._wait_until_ended(worker)
            return True
        return False

    async def usages(self, resource: str) -> list[PodUsage]:
        """Measure what each pod uses of a resource."""
        by_namespace: dict[str, list[PodWorker]] = {}
        for worker in self._active():
            by_namespace.setdefault(worker.pod["metadata"]["namespace"], []).append(worker)

        async def of_namespace(workers: Sequence[PodWorker]) -> list[PodUsage]:
            with work_of(workers[0].pod):
                return [await self._usage(worker, resource) for worker in workers]

        usages = await asyncio.gather(*map(of_namespace, by_namespace.values()))
        return [usage for listed in usages for usage in listed]

    async def _usage(self, worker: PodWorker, resource: str) -> PodUsage:
        if resource == "memory":
            memory = await MEASURES.call(self._memory, worker)
            return PodUsage(worker.pod, sum(memory.values()), memory)
        if resource == "pids":
            threads = self._limits.processes(worker.uid)
            if threads is None:
                threads = await MEASURES.call(count_threads, worker)
            return PodUsage(worker.pod, threads)
        directory, is_inodes = self._files.pods / worker.uid, resource == "inodes"
        count = _inodes if is_inodes else _disk_usage
        stored = await measure(worker.pod, directory, _pids(worker), count=count, in_bytes=not is_inodes)
        resolver = self._files.volumes.claims
        if is_inodes:  # those of claims have no bound, and stay when the pod ends
            counts = {claim.name: await _inodes(claim.path) for claim in resolver.written(worker.uid)}
            usages = {name: (count, count) for name, count in counts.items()}
            return PodUsage(worker.pod, stored.total, stored.containers, usages)
        claims = {
            claim.name: (resolver.stored(claim), claim.size or 0) for claim in resolver.written(worker.uid)
        }
        return PodUsage(worker.pod, stored.total, stored.containers, claims)

    def _memory(self, worker: PodWorker) -> dict[str, int]:
        processes, memory = None, {}
        for name, process in [process for process in worker.processes.items() if process[1].running]:
            usage = self._limits.usage(process.identity)
            if usage is None:
                processes = processes or ProcessTable()
                usage = processes.usage(process.pid)
            memory[name] = usage.memory if usage else 0
        return memory

    async def _wait_until_ended(self, worker: PodWorker) -> None:
        """Wait for the end of an evicted pod's processes, and remove its files."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                await worker.until(lambda record: record.is_quiet)
        await self._files.remove_written(worker.uid)


def _pids(worker: PodWorker) -> dict[str, int]:
    return {name: process.pid for name, process in worker.processes.items() if process.running}


async def _disk_usage(path: Path) -> int:
    return await MEASURES.sum(disk_blocks(path))


async def _inodes(path: Path) -> int:
    return await MEASURES.sum(inodes(path))


def _unlinked_in(claim: ClaimDirectory, worker: PodWorker, disk: Path) -> int:
    """Sum the bytes of a pod's open files of a claim that have no name any more."""
    specs = worker.pod["spec"].get("volumes") or []
    names = {spec["name"] for spec in specs if "persistentVolumeClaim" in spec or "ephemeral" in spec}
    pids, total = _pids(worker), 0
    for _, container in containers(worker.pod):
        if container["name"] in pids:
            sizes = unlinked(container, pids[container["name"]], disk)
            total += sum(size for name, size in sizes.items() if name in names)
    return total
