"""A cluster, watched: CPU, memory and GPU of every node over time, and its pods.

One thread follows nodes and pods and asks the kubelets for their counters; another draws. GPUs are what the
kit can know of them: how many are asked for, and how busy they are where the trainers on a node tell. The
figures are in `node_samples`, the static picture in `cluster_picture`.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kitlib.display.tables import Table
from kitlib.errors import KitError, Rejected
from kitlib.k8s import logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import format_bytes
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.metrics import events
from kitlib.metrics.node_samples import GPU, History, Rates, Use, figures, gpus_held, read_counters
from kitlib.widgets import cluster_picture
from kitlib.widgets.picture import Picture
from kitlib.widgets.watch import Watch

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

# As often as a local node counts: what a container that ends between two looks has used is not told.
SAMPLE_SECONDS = 1.0
MOST_ASKED = 16  # nodes; a request each, so larger clusters are asked by metrics-server
FRESH_SECONDS = 15.0  # what a trainer said longer ago says nothing of now
NODES = ("node", "status", "cpu", "memory", "gpus", "pods")
PODS = ("pod", "phase", "node", "run", "restarts", "why")
KINDS = ("cpu", "memory", "gpus", "gpu")


class ClusterWatch(Watch):
    """A cluster as it is used; made by :meth:`kitlib.Cluster.watch`."""

    kind = "cluster"

    def __init__(self, kube: Kube, *, minutes: float) -> None:
        super().__init__(kube.cluster)
        self.kube = kube
        self.until = time.monotonic() + 60 * minutes
        self.history = History()
        self.source = "the kubelets"
        self.nodes: list[list[object]] = []
        self.pods: list[list[object]] = []
        self._rates = Rates()
        self._sampled = 0.0
        self._followers = logs.Followers()
        self._followed: set[str] = set()  # the uids of pods whose trainers may tell of GPUs
        self._told: dict[str, tuple[float, float]] = {}  # by node: when, and percent

    # Following

    def work(self) -> dict[str, Callable[[], None]]:
        return {"nodes": self._follow, "draw": self._draw}

    def _follow(self) -> None:
        try:
            for seen in watch_objects(self.kube, *self._selections()):
                nodes, every = list(seen.get("Node", {}).values()), list(seen["Pod"].values())
                ending = self.stopping.is_set() or time.monotonic() > self.until
                # Once more at the end: what was short is between the last sample and this one.
                if nodes and (ending or time.monotonic() - self._sampled >= SAMPLE_SECONDS):
                    self._sampled = time.monotonic()
                    self._sample(nodes, every)
                with self.lock:
                    self.nodes, self.pods = self._node_rows(nodes, every), _pod_rows(every)
                self._follow_gpus(every)
                if ending:
                    break
        except KitError as error:
            self.trouble, self.over = error.what, True
        finally:
            self.stopping.set()
            self._followers.close()
            self._followed = set()

    def _selections(self) -> list[WatchSpec]:
        try:
            self.kube.get_all("Node")
        except Rejected as error:
            if error.status != 403:
                raise
            self.trouble = f'only the pods of namespace "{self.kube.namespace}": nodes are for administrators'
            return [WatchSpec("Pod")]
        return [WatchSpec("Node"), WatchSpec("Pod")]

    def _sample(self, nodes: list[Object], every: list[Object]) -> None:
        now, held = time.time(), gpus_held(every)
        used = self._used([each["metadata"]["name"] for each in nodes], now)
        fresh = {node: percent for node, (at, percent) in self._told.items() if now - at < FRESH_SECONDS}
        with self.lock:
            use = {
                name: Use(*used.get(name, (None, None)), held.get(name, 0.0), fresh.get(name))
                for name in (each["metadata"]["name"] for each in nodes)
            }
            self.history.add(now, nodes, use)

    def _used(self, nodes: list[str], now: float) -> dict[str, tuple[float | None, float]]:
        """Return cores and bytes in use by node: by the kubelets, or else by metrics-server."""
        if self.source == "the kubelets" and len(nodes) <= MOST_ASKED:
            found = {}
            for name in nodes:
                try:
                    found[name] = self._ask_kubelet(name, now)
                except Rejected as error:
                    if error.status == 403:  # not for this user: never ask again
                        self.source = "metrics-server"
                        break
                except KitError:  # a node that does not answer has no figures
                    continue
            else:
                return {name: each for name, each in found.items() if each is not None}
        self.source = "metrics-server"
        try:
            return figures(self.kube.get_all("NodeMetrics"))
        except Rejected:
            self.source = "nobody: there is no metrics-server"
            return {}

    def _ask_kubelet(self, name: str, now: float) -> tuple[float | None, float] | None:
        path = f"{self.kube.path('Node', name)}/proxy/metrics/resource"
        read = read_counters(self.kube.stream(path, about=f'the figures of node "{name}"', params={}), now)
        return None if read is None else (self._rates.add(name, read[0], read[1]), read[2])

    def _follow_gpus(self, every: Iterable[Object]) -> None:
        """Listen to trainers that have GPUs: they tell how busy these are."""
        for pod in every:
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            ours = names.RUN in (pod["metadata"].get("labels") or {}) and any(gpus_held([pod]).values())
            if ours and uid not in self._followed and pods.phase(pod) == "Running":
                self._followed.add(uid)
                since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
                ended = partial(logs.written, self.kube, pod)
                self._followers.add(node, logs.Follower(self.kube, pod, ended, logs.Place(since)))

    def _collect(self) -> None:
        lines, _ = self._followers.drain()
        told: dict[str, list[float]] = {}
        for node, line in lines:
            event = events.parse_line(line.text)
            percent = event.fields.get("gpu_percent") if event is not None else None
            if isinstance(percent, int | float):
                told.setdefault(node, []).append(float(percent))
        self._told |= {node: (time.time(), sum(each) / len(each)) for node, each in told.items()}

    # Showing

    def push(self, view: "LiveView") -> int:
        with self.lock:
            history = self.history
            rows = [("time", 0, np.array(history.times) - (history.times[0] if history.times else 0))]
            for kind in KINDS:
                shares = history.percent(kind)
                if kind in ("cpu", "memory") or np.isfinite(shares).any():
                    rows += [(kind, index, row) for index, row in enumerate(shares)]
            return view.show(
                rows, facts=self.facts(), tables={"nodes": self.nodes, "pods": self.pods}, summary=repr(self)
            )

    def facts(self) -> dict[str, object]:
        """Return what is said in words: title, names of nodes, when it began, figures with their units."""
        running = sum(row[1] == "Running" for row in self.pods)
        ready = sum(row[1] == "Ready" for row in self.nodes)
        figures = [["nodes Ready", f"{ready} of {len(self.nodes)}"], ["pods running", str(running)]]
        for kind in ("cpu", "memory"):
            shares = self.history.percent(kind)
            if shares.size and np.isfinite(shares[:, -1]).any():
                figures.append([f"{kind}, mean of nodes", f"{np.nanmean(shares[:, -1]):.0f} %"])
        gone = self.finished or self.stopping.is_set()
        return {
            "title": self.title,
            "about": f'cluster "{self.title}"',
            "phase": "Ended" if gone else "Live",
            "words": self.trouble,
            "figures": figures,
            "notes": [self.trouble] * bool(self.trouble),
            "nodes": self.history.nodes,
            "began": self.history.times[0] if self.history.times else 0,
            "source": self.source,
            "finished": gone,
        }

    def picture(self) -> Picture:
        with self.lock:
            return Picture(cluster_picture.draw(self.history, title=self.title), repr(self))

    def still(self) -> list[dict[str, str]]:
        with self.lock:
            table = Table(NODES, self.nodes, empty=self.trouble or "no nodes yet")
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    def state(self) -> object:
        with self.lock:
            return self.history.count, repr(self.nodes), self.trouble

    def __repr__(self) -> str:
        with self.lock:
            figures = ", ".join(f"{name}: {value}" for name, value in self.facts()["figures"])
        return f"Cluster {self.title}: {figures}" + (f"; {self.trouble}" if self.trouble else "")

    def _node_rows(self, nodes: Iterable[Object], every: list[Object]) -> list[list[object]]:
        newest = self.history.samples[-1] if self.history.samples else {}
        rows = []
        for node in sorted(nodes, key=lambda each: each["metadata"]["name"]):
            name, has = node["metadata"]["name"], node["status"].get("allocatable") or {}
            use = newest.get(name, Use())
            here = [
                each for each in every if each["spec"].get("nodeName") == name and not pods.finished(each)
            ]
            cpu = "–" if use.cpu is None else f"{use.cpu:.2f}"
            memory = "–" if use.memory is None else format_bytes(use.memory)
            gpus = f"{use.gpus:g} of {has[GPU]} asked for" if has.get(GPU, "0") != "0" else "none"
            cpu, memory = f"{cpu} of {has.get('cpu', '?')}", f"{memory} of {format_bytes(has.get('memory'))}"
            rows.append([name, _ready(node), cpu, memory, gpus, len(here)])
        return rows


def _ready(node: Object) -> str:
    every = (node.get("status") or {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in every)
    return "Ready" if ready else "NotReady"


def _pod_rows(every: Iterable[Object]) -> list[list[object]]:
    """Return the pods' rows, in the columns of :data:`PODS`."""
    runs = {each["metadata"]["name"]: (each["metadata"].get("labels") or {}).get(names.RUN) for each in every}
    return [
        [
            each["pod"],
            each["status"],
            each["node"] or "",
            runs[each["pod"]],
            each["restarts"],
            each.get("why", ""),
        ]
        for each in pods.table(every)
    ]
