"""The use of nodes and pods, from the kubelets' counters and from metrics-server. Pure.

The kubelets' counters give the mean since the last reading, metrics-server means over ten seconds or more; it
has none for a pod that has just started.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object
from kitlib.k8s.pods import finished
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, format_cores, parse_quantity, requested

MAX_SAMPLES = 720
_LINK = re.compile(r'trainyard_link_bytes_total\{link="([^"]*)",direction="(\w+)",limit="(\d+)"\} (\d+)')
_COUNTERS = {"node_cpu_usage_seconds_total": "cpu", "node_memory_working_set_bytes": "memory"}


@dataclass(frozen=True)
class NodeUse:
    """The use of a node at one time; None if unknown.

    Attributes:
        cpu: Cores.
        memory: Bytes.
        gpus: GPUs that its pods request.
        gpu: Percent of the time in which its GPUs are busy.
    """

    cpu: float | None = None
    memory: float | None = None
    gpus: float = 0.0
    gpu: float | None = None


def read_counters(text: Iterable[str], now: float) -> tuple[float, float, float] | None:
    """Read a kubelet's ``/metrics/resource``: time of the counters, CPU seconds until then, bytes in use."""
    counters: dict[str, tuple[float, float]] = {}
    for line in text:
        name, *rest = line.split()[:3] or [""]
        if name in _COUNTERS and rest:
            counters[_COUNTERS[name]] = float(rest[0]), (float(rest[1]) / 1000 if len(rest) > 1 else now)
    if len(counters) < 2:
        return None
    return counters["cpu"][1], counters["cpu"][0], counters["memory"][0]


def read_links(text: Iterable[str]) -> dict[tuple[str, str], tuple[float, float]]:
    """Read the bytes, and the limit in bits per second, of a local node's links, by name and direction."""
    matches = filter(None, map(_LINK.match, text))
    return {(match[1], match[2]): (float(match[4]), float(match[3])) for match in matches}


class Rates:
    """Converts counters to rates, by name: CPU seconds of a node to cores in use."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}

    def add(self, node: str, at: float, seconds: float) -> float | None:
        """Return the rate since the last reading, such as cores in use; None for the first reading."""
        before = self._before.get(node)
        if before is None or seconds < before[1]:  # the first reading, or the node has restarted
            self._before[node] = at, seconds
            return None
        if at > before[0]:  # kubelets may update their counters less often
            self._last[node] = (seconds - before[1]) / (at - before[0])
            self._before[node] = at, seconds
        return self._last.get(node)


def figures(metrics: Iterable[Object]) -> dict[str, tuple[float, float]]:
    """Read cores and bytes by node from NodeMetrics objects."""
    usage = {metric["metadata"]["name"]: metric["usage"] for metric in metrics}
    return {node: (parse_quantity(use["cpu"]), parse_quantity(use["memory"])) for node, use in usage.items()}


def requested_gpus(pods: Iterable[Object]) -> dict[str, float]:
    by_node: dict[str, float] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and not finished(pod):
            by_node[node] = by_node.get(node, 0.0) + requested(pod["spec"], GPU)
    return by_node


@dataclass
class UsageHistory:
    """Samples of all nodes: at most `MAX_SAMPLES`, beyond which every other one is dropped.

    Attributes:
        capacity: cpu, memory and gpus of each present or former node.
        times: Seconds since 1970.
        samples: Use by node at these times.
    """

    capacity: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    samples: list[Mapping[str, NodeUse]] = field(default_factory=list)
    count: int = 0

    def add(self, at: float, nodes: Iterable[Object], use: Mapping[str, NodeUse]) -> None:
        """Add a sample of all nodes."""
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
        """The names of the nodes, sorted."""
        return sorted(self.capacity)

    def percent(self, kind: str) -> np.ndarray:
        """Compute the use of ``cpu``, ``memory``, ``gpus`` (requested) or ``gpu`` (in use).

        Returns:
            Percent of what is allocatable, of shape (nodes, samples); NaN if unknown.
        """
        rows = [[self._share(kind, name, sample.get(name)) for sample in self.samples] for name in self.nodes]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.samples))

    def _share(self, kind: str, name: str, use: NodeUse | None) -> float:
        value = getattr(use, kind) if use is not None else None
        if value is None:
            return np.nan
        if kind == "gpu":
            return value
        total = self.capacity[name][("cpu", "memory", "gpus").index(kind)]
        return 100 * value / total if total else np.nan


def node_usage(metrics: Iterable[Object], nodes: Iterable[Object]) -> Table:
    """Tabulate the use of each node, with the share of its allocatable resources."""
    used = {metric["metadata"]["name"]: metric["usage"] for metric in metrics}
    rows = []
    for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
        name, total = node["metadata"]["name"], node["status"].get("allocatable") or {}
        usage = used.get(name, {})
        shares = [_percent(usage.get(kind), total.get(kind)) for kind in ("cpu", "memory")]
        rows.append((name, _cpu(usage.get("cpu")), shares[0], format_bytes(usage.get("memory")), shares[1]))
    return Table(("node", "cpu", "of cpu", "memory", "of memory"), rows, empty="no nodes")


def pod_usage(metrics: Iterable[Object]) -> Table:
    """Tabulate the use of each pod, the sum of its containers, by decreasing CPU."""
    rows = []
    for pod in metrics:
        usages = [container["usage"] for container in pod["containers"]]
        cpu, memory = (sum(parse_quantity(usage[kind]) for usage in usages) for kind in ("cpu", "memory"))
        rows.append((cpu, memory, pod["metadata"]["name"]))
    rows.sort(key=lambda row: (-row[0], row[2]))
    cells = [(name, _cpu(cpu), format_bytes(round(memory))) for cpu, memory, name in rows]
    return Table(("pod", "cpu", "memory"), cells, empty="no metrics yet")


def _cpu(quantity: str | float | None) -> str:
    return "-" if quantity is None else format_cores(round(parse_quantity(quantity), 3))


def _percent(used: str | None, total: str | None) -> str:
    if used is None or total is None or not parse_quantity(total):
        return "-"
    return f"{parse_quantity(used) / parse_quantity(total):.0%}"
