"""Resource usage for metrics-server: ``/metrics/resource``.

A kubelet's own metric families are followed by those of dcgm-exporter on a machine with GPUs. One kubelet
serves all nodes; the destination address of a request selects the node. A node's usage is that of its pods
plus its share of the kubelet itself.

Source: https://kubernetes.io/docs/reference/instrumentation/node-metrics/
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from localkube.kubelet.resources.gpus import GpuMeter, exposition
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.proc_usage import MonotonicCounter, ProcessTable, Usage
from localkube.kubelet.work_pools import MEASURES
from localkube.network.addresses import Addresses

READER = "system:metrics-server"
READABLE = ("/metrics/resource",)
# metrics-server scrapes all nodes within a second; one sample of the processes serves them all.
FRESH_SECONDS = 1.0
FAMILIES = {
    "node_cpu_usage_seconds_total": ("counter", "Cumulative cpu time consumed by the node in core-seconds"),
    "node_memory_working_set_bytes": ("gauge", "Current working set of the node in bytes"),
    "container_start_time_seconds": (
        "gauge",
        "Start time of the container since unix epoch in seconds",
    ),
    "container_cpu_usage_seconds_total": (
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
    ),
    "container_memory_working_set_bytes": ("gauge", "Current working set of the container in bytes"),
    "pod_cpu_usage_seconds_total": ("counter", "Cumulative cpu time consumed by the pod in core-seconds"),
    "pod_memory_working_set_bytes": ("gauge", "Current working set of the pod in bytes"),
    "scrape_error": (
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    ),
    "resource_scrape_error": (
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    ),
}


@dataclass(frozen=True)
class RunningContainer:
    """A running container and its first process."""

    identity: str
    name: str
    pod: Mapping[str, Any]
    pid: int
    started: float


@dataclass
class StatsSample:
    """The usage of all containers at one moment."""

    when: float = 0.0
    usage: dict[str, Usage] = field(default_factory=dict)
    kubelet: Usage = field(default_factory=lambda: Usage(0.0, 0))


class StatsProvider:
    """Samples the usage of all containers on request.

    Args:
        running: Returns the containers that run on a node, by its name.
        control_groups: Returns a container's usage by its control group, None if it has none.
        gpus: The machine's GPUs.
        held: Returns the GPUs of a container, by the name of its node, its pod's uid and its own name.
        links: Returns the traffic counters of a node's links, in Prometheus's text format.
    """

    def __init__(
        self,
        nodes: Iterable[NodeSettings],
        *,
        running: Callable[[str], list[RunningContainer]],
        control_groups: Callable[[str], Usage | None] = lambda identity: None,
        gpus: GpuMeter | None = None,
        held: Callable[[str, str, str], Sequence[str]] = lambda node, uid, container: (),
        links: Callable[[str], Awaitable[str]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes = {node.address: node for node in nodes}
        self._running, self._clock = running, clock
        self._control_groups = control_groups
        self._gpus, self._held, self._links = gpus, held, links
        self._counters: dict[str, MonotonicCounter] = {}
        self._ended = dict.fromkeys((node.name for node in self._nodes.values()), 0.0)
        self._last: dict[str, dict[str, float]] = {name: {} for name in self._ended}
        self._sample, self._measuring = StatsSample(), asyncio.Lock()

    def node(self, address: str) -> NodeSettings | None:
        return self._nodes.get(address)

    async def measure(self) -> StatsSample:
        """Sample all containers, in a thread, as they may have many processes; reused for a second."""
        async with self._measuring:
            now = self._clock()
            if now - self._sample.when >= FRESH_SECONDS:
                running = {name: self._running(name) for name in self._ended}
                self._sample = StatsSample(now, await MEASURES.call(self._measure, running), _own_usage())
            return self._sample

    def _measure(self, running: Mapping[str, Iterable[RunningContainer]]) -> dict[str, Usage]:
        processes: ProcessTable | None = None
        usages = {}
        for name, containers in running.items():
            seconds = {}
            for container in containers:
                usage = self._control_groups(container.identity)
                if usage is None:
                    processes = processes or ProcessTable()
                    usage = processes.usage(container.pid)
                if usage is not None:
                    counter = self._counters.setdefault(container.identity, MonotonicCounter())
                    usages[container.identity] = Usage(counter.add(usage.cpu), usage.memory)
                    seconds[container.identity] = usages[container.identity].cpu
            self._close(name, seconds)
        return usages

    def _close(self, node: str, seconds: dict[str, float]) -> None:
        """Keep the CPU time of containers that have ended since the last sample."""
        for identity in self._last[node].keys() - seconds.keys():
            self._ended[node] += self._last[node][identity]
            self._counters.pop(identity, None)
        self._last[node] = seconds

    async def resource(self, node: NodeSettings) -> str:
        """Format the text of ``/metrics/resource``."""
        sample, lines = await self.measure(), _Lines()
        whole = self._node_usage(node, sample)
        lines.add("node_cpu_usage_seconds_total", whole.cpu, when=sample.when)
        lines.add("node_memory_working_set_bytes", whole.memory, when=sample.when)
        pods: dict[tuple[str, str], list[Usage]] = {}
        for container in self._running(node.name):
            usage = sample.usage.get(container.identity)
            if usage is None:
                continue
            meta = container.pod["metadata"]
            pod = {"namespace": meta["namespace"], "pod": meta["name"]}
            labels = {"container": container.name, **pod}
            lines.add("container_start_time_seconds", container.started, labels)
            lines.add("container_cpu_usage_seconds_total", usage.cpu, labels, when=sample.when)
            lines.add("container_memory_working_set_bytes", usage.memory, labels, when=sample.when)
            pods.setdefault((meta["namespace"], meta["name"]), []).append(usage)
        for (namespace, name), usages in pods.items():
            labels, total = {"namespace": namespace, "pod": name}, _sum(usages)
            lines.add("pod_cpu_usage_seconds_total", total.cpu, labels, when=sample.when)
            lines.add("pod_memory_working_set_bytes", total.memory, labels, when=sample.when)
        lines.add("scrape_error", 0)
        lines.add("resource_scrape_error", 0)
        links = await self._links(node.name) if self._links else ""
        return lines.text() + self._gpu_lines(node) + links

    def _gpu_lines(self, node: NodeSettings) -> str:
        """Format the metrics of the node's real GPUs, as dcgm-exporter's."""
        if not node.gpu_devices or self._gpus is None:
            return ""
        uses = [use for use in self._gpus.sample() if use.uuid in node.gpu_devices]
        holders: dict[str, list[dict[str, str]]] = {}
        for container in self._running(node.name):
            meta = container.pod["metadata"]
            labels = {"container": container.name, "namespace": meta["namespace"], "pod": meta["name"]}
            for uuid in self._held(node.name, meta["uid"], container.name):
                holders.setdefault(uuid, []).append(labels)
        return exposition(node.name, uses, holders)

    def _node_usage(self, node: NodeSettings, sample: StatsSample) -> Usage:
        """Compute a node's usage: its pods and its share of the kubelet."""
        share = len(self._nodes)
        used = [sample.usage[identity] for identity in self._last[node.name] if identity in sample.usage]
        pods = _sum(used)
        cpu = self._ended[node.name] + pods.cpu + sample.kubelet.cpu / share
        return Usage(cpu, pods.memory + sample.kubelet.memory // share)


def stats_routes(stats: StatsProvider, addresses: Addresses) -> list[web.RouteDef]:
    """Build the routes of the kubelet's API; ``addresses`` maps the destination address to its node."""

    def requested_node(request: web.Request) -> NodeSettings:
        address = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        if node := stats.node(addresses.seen(address)):
            return node
        raise web.HTTPNotFound(text=f"no node of this kubelet has the address {address}")

    async def resource(request: web.Request) -> web.Response:
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        text = await stats.resource(requested_node(request))
        return web.Response(body=text.encode(), headers={"Content-Type": content_type})

    return [web.get("/metrics/resource", resource)]


def may_read(name: str, path: str) -> bool:
    """Check whether a client other than the API server may read a path."""
    return name == READER and path in READABLE


class _Lines:
    """Prometheus's text format, one block per metric family."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(
        self, name: str, value: float, labels: Mapping[str, str] | None = None, *, when: float | None = None
    ) -> None:
        # Names of Kubernetes need no escaping.
        inside = ",".join(f'{key}="{text}"' for key, text in labels.items()) if labels else ""
        series = f"{name}{{{inside}}}" if inside else name
        moment = f" {round(when * 1000)}" if when is not None else ""
        self._families.setdefault(name, []).append(f"{series} {value!r}{moment}")

    def text(self) -> str:
        lines = []
        for name, samples in self._families.items():
            kind, about = FAMILIES[name]
            lines += [f"# HELP {name} [STABLE] {about}", f"# TYPE {name} {kind}", *samples]
        return "\n".join(lines) + "\n"


def _own_usage() -> Usage:
    times = os.times()
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return Usage(times.user + times.system, (resident - shared) * os.sysconf("SC_PAGE_SIZE"))


def _sum(usages: Iterable[Usage]) -> Usage:
    parts = list(usages)
    return Usage(sum(usage.cpu for usage in parts), sum(usage.memory for usage in parts))
