"""Resource limits of containers: enforced by control groups where available, otherwise by the kubelet.

Without control groups a container with a CPU limit is pinned to that many cores, and ``OomWatcher`` kills one
that exceeds its memory limit. Its memory is anonymous and shared memory, without page cache. The cheap figure
counts pages shared by forks repeatedly, so a container over its limit is measured again by proportional
shares. What it shares with the fork server is not its own, as with control groups.
"""

import asyncio
import contextlib
import contextvars
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.kubelet.quantity import parse, whole
from localkube.kubelet.resources.cgroup_hierarchy import Bounds
from localkube.kubelet.resources.cgroups import ControlGroups, Resources
from localkube.kubelet.resources.proc_usage import Usage, own_memory
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.work_pools import MEASURES

SWEEP_SECONDS = 5.0

log = logging.getLogger(__name__)


class ResizeError(Exception):
    """A container's limits cannot be changed as requested at present."""


class Limits:
    """Enforces the limits of all containers.

    Args:
        kill: Called with the identity of a container that exceeds its memory limit.
    """

    def __init__(
        self,
        *,
        groups: ControlGroups | None = None,
        kill: Callable[[str], None] = lambda identity: None,
        cores: Sequence[int] | None = None,
    ) -> None:
        self._groups, self._kill = groups, kill
        self._cores = CoreAllocator(sorted(os.sched_getaffinity(0)) if cores is None else cores)
        self._memory = OomWatcher(self._kill_over_limit)
        self._ended: set[str] = set()

    def apply(
        self,
        container: Mapping[str, Any],
        *,
        identity: str,
        first_core: int = 0,
        pod: Mapping[str, Any] | None = None,
    ) -> tuple[list[str], list[int]]:
        """Prepare the limits of a container that is about to start.

        Args:
            identity: Unique for each start of it.
            first_core: The first core of its node, so that nodes use different ones.
            pod: Its pod; by default the container is alone.

        Returns:
            The files to which its first process writes a 0 to join its control groups, and the cores that it
            may use; empty without a limit.
        """
        requested = resources(container)
        if self._groups is not None:
            try:
                whole_pod = pod_resources(pod) if pod else None
                namespace = pod["metadata"]["namespace"] if pod else "default"
                return self._groups.make(identity, requested, pod=whole_pod, namespace=namespace), []
            except OSError as error:
                log.warning("the control group of %s: %s", identity, error)
        if requested.cpu_limit is None:
            return [], []
        return [], self._cores.allocate(identity, math.ceil(requested.cpu_limit), first=first_core)

    def started(
        self, pod: Mapping[str, Any], name: str, *, identity: str, pid: int, forked_from: int = 0
    ) -> None:
        """Register a container's first process, and the fork server's pid if that forked it."""
        started = [container for _, container in containers(pod) if container["name"] == name]
        limit = resources(started[0]).memory_limit if started else None
        if limit and self._groups is None:
            self._memory.add(identity, pid=pid, limit=limit, forked_from=forked_from)

    def resize(
        self,
        pod: Mapping[str, Any],
        container: Mapping[str, Any],
        *,
        identity: str,
        pid: int,
        forked_from: int = 0,
        first_core: int = 0,
    ) -> None:
        """Change the limits of a running container.

        Without control groups, its processes are moved to as many cores as the new limit.
        """
        requested = resources(container)
        used = self._groups.memory(identity) if self._groups else memory(tree(pid), forked_from=forked_from)
        if requested.memory_limit is not None and used >= requested.memory_limit:
            attempt = (
                f'attempting to set container "{container["name"]}" memory limit ({requested.memory_limit})'
            )
            raise ResizeError(f"cannot decrease memory limits: {attempt} below current usage ({used})")
        if self._groups is not None:
            try:
                self._groups.resize(identity, requested)
                self._groups.resize_pod(identity, pod_resources(pod))
            except OSError as error:
                raise ResizeError(f"the control group refuses: {error.strerror}") from error
            return
        self._memory.remove(identity)
        if requested.memory_limit:
            self._memory.add(identity, pid=pid, limit=requested.memory_limit, forked_from=forked_from)
        if requested.cpu_limit is not None:
            self._cores.move(identity, math.ceil(requested.cpu_limit), first=first_core, pid=pid)

    def ended(self, identity: str) -> bool:
        """Unregister a container; True when it ran out of memory."""
        self._memory.remove(identity)
        self._cores.free(identity)
        over = identity in self._ended
        self._ended.discard(identity)
        if self._groups is not None:
            over = over or self._groups.ran_out_of_memory(identity)
            self._groups.remove(identity)
        return over

    def keep_only(self, identities: set[str]) -> None:
        """Remove the control groups of all other containers."""
        if self._groups is not None:
            self._groups.keep_only(identities)

    def processes(self, uid: str) -> int | None:
        """Count a pod's processes and threads by its control group; None without one."""
        return self._groups.processes(uid) if self._groups is not None else None

    @property
    def bounds(self) -> Bounds | None:
        """The control groups' limits for namespaces; None if none counts processes."""
        return self._groups.bounds if self._groups is not None and self._groups.counts_processes else None

    def usage(self, identity: str) -> Usage | None:
        """Read a container's usage by its control group; None without one."""
        return self._groups.usage(identity) if self._groups is not None else None

    async def run(self) -> None:
        """Watch memory limits, and remove the groups of ended containers."""
        await asyncio.gather(self._memory.run(), self._sweep())

    async def _sweep(self) -> None:
        while self._groups is not None:
            self._groups.sweep()
            self._groups.sweep_namespaces()
            await asyncio.sleep(SWEEP_SECONDS)

    def _kill_over_limit(self, identity: str) -> None:
        self._ended.add(identity)
        self._kill(identity)


class CoreAllocator:
    """Assigns cores to containers with a CPU limit, those with the fewest users first."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._users = dict.fromkeys(cores, 0)
        self._assigned: dict[str, list[int]] = {}

    def allocate(self, identity: str, count: int, *, first: int = 0) -> list[int]:
        """Assign ``count`` cores; none when the container may use all.

        Example:
            >>> cores = CoreAllocator([0, 1, 2, 3])
            >>> cores.allocate("a", 2), cores.allocate("b", 1, first=3), cores.allocate("c", 2)
            ([0, 1], [3], [2, 0])
        """
        if count >= len(self._users):
            return []
        self.free(identity)
        cores = list(self._users)
        rotated = cores[first % len(cores) :] + cores[: first % len(cores)]
        chosen = sorted(rotated, key=self._users.__getitem__)[:count]
        for core in chosen:
            self._users[core] += 1
        self._assigned[identity] = chosen
        return chosen

    def move(self, identity: str, count: int, *, pid: int, first: int = 0) -> None:
        """Assign ``count`` other cores to a running container.

        Args:
            pid: Its first process; threads that start meanwhile inherit the cores of their parents.
        """
        self.free(identity)
        cores = self.allocate(identity, count, first=first) or list(self._users)
        for process in tree(pid):
            for thread in threads(process):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cores)

    def free(self, identity: str) -> None:
        for core in self._assigned.pop(identity, ()):
            self._users[core] -= 1


def resources(container: Mapping[str, Any]) -> Resources:
    """Parse a container's resources; a limit is also the default request."""
    amounts = container.get("resources") or {}
    limits, requests = amounts.get("limits") or {}, amounts.get("requests") or {}
    cpu = limits.get("cpu")
    return Resources(
        cpu_request=float(parse(requests.get("cpu") or cpu or "0")),
        cpu_limit=float(parse(cpu)) if cpu else None,
        memory_limit=whole(limits["memory"]) if limits.get("memory") else None,
    )


def pod_resources(pod: Mapping[str, Any]) -> Resources:
    """Sum the resources of a pod's containers."""
    resources_of_each = [resources(container) for _, container in containers(pod)]
    return Resources(
        cpu_request=sum(share.cpu_request for share in resources_of_each),
        cpu_limit=sum(share.cpu_limit or 0 for share in resources_of_each) or None,
        memory_limit=sum(share.memory_limit or 0 for share in resources_of_each) or None,
    )


CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class MemoryLimit:
    """The limit of a container without a control group.

    Attributes:
        pid: The pid of its first process.
        bytes: At most this much anonymous and shared memory.
        forked_from: The fork server's pid, or 0. What the container still shares with it is not counted.
        context: The context variables with which the memory is measured.
    """

    pid: int
    bytes: int
    forked_from: int
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def is_exceeded(self) -> bool:
        processes = tree(self.pid)
        return (
            resident(processes) > self.bytes and memory(processes, forked_from=self.forked_from) > self.bytes
        )


def memory(processes: Iterable[int], *, forked_from: int) -> int:
    """Measure the memory of all processes of a container in bytes; pages that they share count once.

    Args:
        forked_from: The fork server's pid, or 0. At most as much as it has is taken for shared with it.
    """
    measured = [own_memory(process) for process in processes]
    inherited = min(resident([forked_from]), sum(process.shared for process in measured))
    return sum(process.total for process in measured) - inherited


class OomWatcher:
    """Checks the memory of containers with limits twice a second.

    A container may have thousands of processes, so they are read in threads, in turns by namespace.
    """

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._limits: dict[str, MemoryLimit] = {}
        self._not_empty = asyncio.Event()

    def add(self, identity: str, *, pid: int, limit: int, forked_from: int) -> None:
        self._limits[identity] = MemoryLimit(pid, limit, forked_from)
        self._not_empty.set()

    def remove(self, identity: str) -> None:
        self._limits.pop(identity, None)
        if not self._limits:
            self._not_empty.clear()

    async def run(self) -> None:
        checks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._not_empty.wait()
                for identity, limit in self._limits.items():
                    if identity not in checks or checks[identity].done():
                        check = self._check(identity, limit)
                        checks[identity] = tasks.create_task(check, context=limit.context)
                checks = {identity: check for identity, check in checks.items() if not check.done()}
                await asyncio.sleep(CHECK_SECONDS)

    async def _check(self, identity: str, limit: MemoryLimit) -> None:
        if await MEASURES.call(limit.is_exceeded) and identity in self._limits:
            log.info("%s exceeds its memory limit of %d bytes", identity, limit.bytes)
            self.remove(identity)
            self._end(identity)


def tree(pid: int) -> list[int]:
    """List the process and its descendants: orphans of a container are reparented to its first process."""
    pids, index = [pid], 0
    while index < len(pids):
        for thread in threads(pids[index]):
            pids += [int(child) for child in _read(thread / "children").split()]
        index += 1
    return pids


def threads(pid: int) -> list[Path]:
    """List the directories of a process's threads; none once it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def resident(pids: Iterable[int]) -> int:
    """Sum anonymous and shared memory in bytes; pages shared by forks count repeatedly."""
    return sum(_sum(_read(Path(f"/proc/{pid}/status")), ("RssAnon:", "RssShmem:")) for pid in pids)


def _sum(text: str, names: tuple[str, ...]) -> int:
    lines = (line.split() for line in text.split("\n"))  # a name may have other separators
    return sum(int(fields[1]) * 1024 for fields in lines if fields and fields[0] in names)


def _read(path: Path) -> str:
    try:
        # A process may have any bytes in its name, and may not be readable.
        return path.read_text(errors="replace")
    except OSError:
        return ""
