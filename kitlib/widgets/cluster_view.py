"""The usage of a cluster: CPU, memory and GPUs of the nodes over time, and the pods.

One thread watches nodes and pods and reads the kubelets' counters; another draws. GPU usage is from
`gpu_reader`, or from the logs of trainers. The metrics are in `kitlib.metrics.node_usage`, the static plot in
`plots`.
"""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kitlib.display.tables import Table
from kitlib.errors import KitError, Rejected
from kitlib.k8s import names, pods
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU, allocatable, format_bytes
from kitlib.k8s.watch import Snapshot, WatchSpec
from kitlib.metrics import events
from kitlib.metrics.gpu_usage import GpuUse, combine
from kitlib.metrics.node_usage import (
    NodeUse,
    Rates,
    UsageHistory,
    figures,
    read_counters,
    read_links,
    requested_gpus,
)
from kitlib.widgets.gpu_reader import GpuReader
from kitlib.widgets.plots import Picture, plot_usage
from kitlib.widgets.watch import ObjectWatch, rows_in

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

# As often as a local node samples; the usage of a container that ends between two samples is lost.
SAMPLE_SECONDS = 1.0
MAX_KUBELETS = 16  # one request each; metrics-server is used for larger clusters
FRESH_SECONDS = 15.0  # older GPU samples are ignored
NODES = ("node", "status", "cpu", "memory", "gpus", "pods")
PODS = {"pod": "", "status": "", "node": "", "run": None, "restarts": 0, "why": ""}  # with defaults
KINDS = ("cpu", "memory", "gpus", "gpu")
Flows = dict[str, tuple[float, float]]  # bits per second, and the limit, by link


class ClusterWatch(ObjectWatch):
    """A live view of a cluster; created by :meth:`kitlib.Cluster.watch`."""

    kind = "cluster"

    def __init__(self, kube: Kube, *, minutes: float) -> None:
        super().__init__(kube, minutes=minutes)  # logs: of pods whose trainers may report GPU usage
        self.history: UsageHistory = UsageHistory()
        self.source: str = "the kubelets"
        self.nodes: list[list[object]] = []
        self.pods: list[list[object]] = []
        self._rates = Rates()
        self._flows: Flows = {}
        self._sampled = 0.0
        self._gpus = GpuReader(kube)
        self._gpu_use: Mapping[str, GpuUse] = {}  # by node
        self._gpu_percent: dict[str, tuple[float, float]] = {}  # by node, from trainers: time, percent

    # Follow

    def update(self, snapshot: Snapshot, *, last: bool) -> None:
        nodes, cluster_pods = list(snapshot.get("Node", {}).values()), list(snapshot["Pod"].values())
        # Also at the end, to include a load since the last sample.
        if nodes and (last or time.monotonic() - self._sampled >= SAMPLE_SECONDS):
            self._sampled = time.monotonic()
            self._sample(nodes, cluster_pods)
        with self.lock:
            self.nodes, self.pods = self._node_rows(nodes, cluster_pods), _pod_rows(cluster_pods)
        self._follow_gpus(cluster_pods)

    def specs(self) -> list[WatchSpec]:
        if allowed(lambda: self.kube.get_all("Node")) is not None:
            return [WatchSpec("Node"), WatchSpec("Pod")]
        namespace = self.kube.namespace
        self.error: str = f'only the pods of namespace "{namespace}": this user may not list nodes'
        return [WatchSpec("Pod")]

    def _sample(self, nodes: list[Object], cluster_pods: list[Object]) -> None:
        now, requested = time.time(), requested_gpus(cluster_pods)
        used = self._used([node["metadata"]["name"] for node in nodes], now)
        reports = self._gpu_percent.items()
        percents = {node: percent for node, (at, percent) in reports if now - at < FRESH_SECONDS}
        gpu_nodes = [node["metadata"]["name"] for node in nodes if allocatable(node, GPU)]
        samples = self._gpus.read(gpu_nodes)
        gpus = {node: use for node, items in samples.items() if (use := combine(items)) is not None}
        percents |= {node: use.percent for node, use in gpus.items()}
        with self.lock:
            self._gpu_use = gpus
            sample = {}
            for name in (node["metadata"]["name"] for node in nodes):
                cpu, memory = used.get(name, (None, None))
                sample[name] = NodeUse(cpu, memory, requested.get(name, 0.0), percents.get(name))
            self.history.add(now, nodes, sample)

    def _used(self, nodes: list[str], now: float) -> Mapping[str, tuple[float | None, float]]:
        """Read cores and bytes in use by node, from the kubelets or from metrics-server."""
        if self.source == "the kubelets" and len(nodes) <= MAX_KUBELETS:
            usage, flows = {}, Flows()
            for name in nodes:
                try:
                    usage[name] = self._read_kubelet(name, now, flows)
                except Rejected as error:
                    if error.status == 403:  # forbidden: do not retry
                        self.source = "metrics-server"
                        break
                except KitError:  # an unreachable node has no metrics
                    continue
            else:
                self._flows = flows
                return {name: value for name, value in usage.items() if value is not None}
        self.source = "metrics-server"
        try:
            return figures(self.kube.get_all("NodeMetrics"))
        except Rejected:
            self.source = "none: metrics-server is not installed"
            return {}

    def _read_kubelet(self, name: str, now: float, flows: Flows) -> tuple[float | None, float] | None:
        path = f"{self.kube.path('Node', name)}/proxy/metrics/resource"
        lines = [*self.kube.stream(path, about=f'the metrics of node "{name}"', params={})]
        for (link, direction), (sent, limit) in read_links(lines).items():
            flow = 8 * (self._rates.add(f"{link} {direction}", now, sent) or 0.0)
            flows[link] = max(flow, flows.get(link, (0.0,))[0]), limit
        counters = read_counters(lines, now)
        return None if counters is None else (self._rates.add(name, counters[0], counters[1]), counters[2])

    def _follow_gpus(self, cluster_pods: Iterable[Object]) -> None:
        """Follow the logs of trainers with GPUs, which may report GPU usage."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        for pod in cluster_pods:
            is_run = names.RUN in (pod["metadata"].get("labels") or {})
            has_gpus = any(requested_gpus([pod]).values())
            if is_run and has_gpus and pods.phase(pod) == "Running" and pods.started(pod):
                self.logs.follow(pod, pod["spec"].get("nodeName"), since=since)

    def collect(self) -> None:
        reported: dict[str, list[float]] = {}
        for node, line in self.logs.drain():
            event = events.parse_line(line.text)
            percent = event.fields.get("gpu_percent") if event is not None else None
            if (percent := events.finite_figure(percent)) is not None:
                reported.setdefault(node, []).append(percent)
        self._gpu_percent |= {
            node: (time.time(), sum(values) / len(values)) for node, values in reported.items()
        }

    # Display

    def push(self, view: "LiveView") -> int:
        with self.lock:
            history = self.history
            rows = [("time", 0, np.array(history.times) - (history.times[0] if history.times else 0))]
            for kind in KINDS:
                shares = history.percent(kind)
                if kind in ("cpu", "memory") or np.isfinite(shares).any():
                    rows += [(kind, index, row) for index, row in enumerate(shares)]
            tables = {"nodes": self.table(), "pods": Table(tuple(PODS), self.pods, empty="no pods")}
            return view.show(rows, facts=self.facts(), tables=tables, summary=repr(self))

    def facts(self) -> dict[str, Any]:
        """Facts for the view: title, names of nodes, start time, values with their units."""
        running = sum(row[1] == "Running" for row in self.pods)
        ready = sum(row[1] == "Ready" for row in self.nodes)
        figures = [["nodes Ready", f"{ready} of {len(self.nodes)}"], ["pods running", str(running)]]
        for kind in ("cpu", "memory", "gpu"):
            shares = self.history.percent(kind)
            if shares.size and np.isfinite(shares[:, -1]).any():
                figures.append([f"{kind}, mean of nodes", f"{np.nanmean(shares[:, -1]):.0f} %"])
        flows = sorted(self._flows.items())
        figures += [[link, f"{flow / 1e6:.1f} of {limit / 1e6:g} Mbit/s"] for link, (flow, limit) in flows]
        finished = self.finished or self.stopping.is_set()
        return {
            "title": self.title,
            "about": f'cluster "{self.title}"',
            "phase": "Ended" if finished else "Live",
            "figures": figures,
            "notes": [self.error] * bool(self.error),
            "nodes": self.history.nodes,
            "began": self.history.times[0] if self.history.times else 0,
            "source": self.source,
            "finished": finished,
        }

    def picture(self) -> Picture:
        with self.lock:
            return plot_usage(self.history, title=self.title, alt=repr(self))

    def table(self) -> Table:
        with self.lock:
            return Table(NODES, self.nodes, empty=self.error or "no nodes yet")

    def state(self) -> object:
        with self.lock:
            return self.history.count, repr(self.nodes), self.error

    def __repr__(self) -> str:
        with self.lock:
            figures = ", ".join(f"{name}: {value}" for name, value in self.facts()["figures"])
        return f"Cluster {self.title}: {figures}" + (f"; {self.error}" if self.error else "")

    def _node_rows(self, nodes: Iterable[Object], cluster_pods: list[Object]) -> list[list[object]]:
        newest = self.history.samples[-1] if self.history.samples else {}
        rows = []
        for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
            name, total = node["metadata"]["name"], node["status"].get("allocatable") or {}
            use = newest.get(name, NodeUse())
            node_pods = [pod for pod in cluster_pods if pod["spec"].get("nodeName") == name]
            pod_count = sum(not pods.finished(pod) for pod in node_pods)
            cpu = "–" if use.cpu is None else f"{use.cpu:.2f}"
            memory = "–" if use.memory is None else format_bytes(use.memory)
            gpus = f"{use.gpus:g} of {count:g} requested" if (count := allocatable(node, GPU)) else "none"
            gpus += f"; {self._gpu_use[name]}" if name in self._gpu_use else ""
            cpu += f" of {total.get('cpu', '?')}"
            memory += f" of {format_bytes(total.get('memory'))}"
            ready = "Ready" if pods.has_condition(node, "Ready") else "NotReady"
            rows.append([name, ready, cpu, memory, gpus, pod_count])
        return rows


def _pod_rows(cluster_pods: Iterable[Object]) -> list[list[object]]:
    """Build the rows of the pods in the columns of :data:`PODS`, finished pods last."""
    cluster_pods = list(cluster_pods)
    finished = {pod["metadata"]["name"] for pod in cluster_pods if pods.finished(pod)}
    labels = {pod["metadata"]["name"]: pod["metadata"].get("labels") or {} for pod in cluster_pods}
    rows = [row | {"run": labels[row["pod"]].get(names.RUN)} for row in pods.table(cluster_pods)]
    rows.sort(key=lambda row: row["pod"] in finished)
    return rows_in(PODS, rows)
