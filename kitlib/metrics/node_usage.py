"""The use of nodes and pods: the kubelets' counters over time, metrics-server's figures as tables.

The kubelets' counters give the mean since they were read last, metrics-server means over ten seconds or
more; a pod that has just started has none. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object
from kitlib.k8s.pods import finished
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, format_cores, parse_quantity

MAX_SAMPLES = 720
_LINK = re.compile(r'trainyard_link_bytes_total\{link="([^"]*)",direction="(\w+)",limit="(\d+)"\} (\d+)')
_COUNTERS = {"node_cpu_usage_seconds_total": "cpu", "node_memory_working_set_bytes": "memory"}


@dataclass(frozen=True)
class NodeUse:
    """The use of a node at one time; None where it is not known.

    Attributes:
        cpu: Cores.
        memory: Bytes.
        gpus: GPUs that its pods request.
        gpu: Percent of the time in which they are busy.
    """

    cpu: float | None = None
    memory: float | None = None
    gpus: float = 0.0
    gpu: float | None = None


def read_counters(text: Iterable[str], now: float) -> tuple[float, float, float] | None:
    """Read a kubelet's ``/metrics/resource``: the counters' time, seconds of CPU until then, bytes in use."""
    counters: dict[str, tuple[float, float]] = {}
    for line in text:
        name, *rest = line.split()[:3] or [""]
        if name in _COUNTERS and rest:
            counters[_COUNTERS[name]] = float(rest[0]), (float(rest[1]) / 1000 if len(rest) > 1 else now)
    if len(counters) < 2:
        return None
    return counters["cpu"][1], counters["cpu"][0], counters["memory"][0]


def read_links(text: Iterable[str]) -> dict[tuple[str, str], tuple[float, float]]:
    """Read bytes and the limit, in bits per second, by the name and direction of a local node's links."""
    matches = filter(None, map(_LINK.match, text))
    return {(match[1], match[2]): (float(match[4]), float(match[3])) for match in matches}


class Rates:
    """Counters converted to rates, by name: CPU seconds of a node to cores in use."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}

    def add(self, node: str, at: float, seconds: float) -> float | None:
        """Compute the cores in use since the counter was read last; None the first time."""
        before = self._before.get(node)
        if before is None or seconds < before[1]:  # the first reading, or the node has restarted
            self._before[node] = at, seconds
            return None
        if at > before[0]:  # kubelets may count less often than they are read
            self._last[node] = (seconds - before[1]) / (at - before[0])
            self._before[node] = at, seconds
        return self._last.get(node)


def figures(metrics: Iterable[Object]) -> dict[str, tuple[float, float]]:
    """Read cores and bytes by node from objects of kind NodeMetrics."""
    return {
        metric["metadata"]["name"]: (
            parse_quantity(metric["usage"]["cpu"]),
            parse_quantity(metric["usage"]["memory"]),
        )
        for metric in metrics
    }


def gpus_held(pods: Iterable[Object]) -> dict[str, float]:
    """Count the GPUs that the pods of each node request."""
    by_node: dict[str, float] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and not finished(pod):
            limits = (
                (container.get("resources") or {}).get("limits") or {}
                for container in pod["spec"]["containers"]
            )
            by_node[node] = by_node.get(node, 0.0) + sum(
                parse_quantity(limit.get(GPU, 0)) for limit in limits
            )
    return by_node


@dataclass
class UsageHistory:
    """Samples of all nodes, a bounded number of them: when there are too many, every other one is dropped.

    Attributes:
        capacity: cpu, memory and gpus of each node that was ever seen.
        times: Seconds since 1970.
        samples: Use by node, at each of the times.
    """

    capacity: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    samples: list[Mapping[str, NodeUse]] = field(default_factory=list)
    count: int = 0

    def add(self, at: float, nodes: Iterable[Object], use: Mapping[str, NodeUse]) -> None:
        """Add one sample."""
        for node in nodes:
            cpu, memory, gpus = (allocatable(node, kind) for kind in ("cpu", "memory", GPU))
            self.capacity[node["metadata"]["name"]] = cpu, memory, gpus
        self.times.append(at)
        self.samples.append(use)
        self.count += 1
        if len(self.times) > MAX_SAMPLES:
            del self.times[1::2], self.samples[1::2]

    @property
    def nodes(self) -> list[str]:
        """Their names, in order."""
        return sorted(self.capacity)

    def percent(self, kind: str) -> np.ndarray:
        """Compute the use of ``cpu``, ``memory``, ``gpus`` (requested) or ``gpu`` (in use).

        Returns:
            Percent of what is allocatable, of shape (nodes, samples); NaN where it is not known.
        """
        rows = [[self._share(kind, name, sample.get(name)) for sample in self.samples] for name in self.nodes]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.samples))

    def _share(self, kind: str, name: str, use: NodeUse | None) -> float:
        value = getattr(use, kind) if use is not None else None
        if value is None:
            return np.nan
        if kind == "gpu":
            return value
        has = self.capacity[name][("cpu", "memory", "gpus").index(kind)]
        return 100 * value / has if has else np.nan


def node_usage(metrics: Iterable[Object], nodes: Iterable[Object]) -> Table:
    """Make a table of the use of each node, with its share of what is allocatable there."""
    used = {metric["metadata"]["name"]: metric["usage"] for metric in metrics}
    rows = []
    for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
        name, has = node["metadata"]["name"], node["status"].get("allocatable") or {}
        usage = used.get(name, {})
        shares = [_percent(usage.get(kind), has.get(kind)) for kind in ("cpu", "memory")]
        rows.append((name, _cpu(usage.get("cpu")), shares[0], format_bytes(usage.get("memory")), shares[1]))
    return Table(("node", "cpu", "of cpu", "memory", "of memory"), rows, empty="no nodes")


def pod_usage(metrics: Iterable[Object]) -> Table:
    """Make a table of the use of each pod, the sum of its containers', largest CPU first."""
    rows = []
    for pod in metrics:
        usages = [container["usage"] for container in pod["containers"]]
        cpu, memory = (sum(parse_quantity(usage[kind]) for usage in usages) for kind in ("cpu", "memory"))
        rows.append((cpu, memory, pod["metadata"]["name"]))
    rows.sort(key=lambda row: (-row[0], row[2]))
    shown = [(name, _cpu(cpu), format_bytes(round(memory))) for cpu, memory, name in rows]
    return Table(("pod", "cpu", "memory"), shown, empty="no pod has figures yet")


def _cpu(quantity: str | float | None) -> str:
    return "-" if quantity is None else format_cores(round(parse_quantity(quantity), 3))


def _percent(used: str | None, has: str | None) -> str:
    if used is None or has is None or not parse_quantity(has):
        return "-"
    return f"{parse_quantity(used) / parse_quantity(has):.0%}"
