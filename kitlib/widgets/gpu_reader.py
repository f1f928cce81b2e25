"""GPU usage of nodes, from a local cluster's kubelets or from dcgm-exporter.

Both are read through the API server, which requires access to ``nodes/proxy``, or to ``pods/proxy`` in
dcgm-exporter's namespace. Otherwise only trainers' logs have GPU usage.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from kitlib.errors import KitError
from kitlib.k8s import pods
from kitlib.k8s.client import Kube
from kitlib.metrics.gpu_usage import GpuSample, read_gpus

MAX_NODES = 16  # one request each
RETRY_SECONDS = 10.0  # if no source had samples
READ_SECONDS = 5.0
PORT = 9400
# Labels of the pods of the Helm chart, of GKE, and of the GPU operator.
EXPORTERS = (
    "app.kubernetes.io/name in (dcgm-exporter,gke-managed-dcgm-exporter)",
    "app=nvidia-dcgm-exporter",
)
Samples = dict[str, list[GpuSample]]


class GpuReader:
    """Reads the GPU usage of a cluster's nodes.

    Attributes:
        source: The last source that had samples; empty if none.
    """

    def __init__(self, kube: Kube) -> None:
        self.source: str = ""
        self._kube = kube
        self._not_before = 0.0

    def read(self, nodes: Iterable[str]) -> Samples:
        """Read the samples of each node; unreachable nodes have none."""
        names = sorted(nodes)[:MAX_NODES]
        if not names or time.monotonic() < self._not_before:
            return {}
        paths: dict[str, Callable[[list[str]], Mapping[str, str]]]
        kubelets = {node: f"{self._kube.path('Node', node)}/proxy/metrics/resource" for node in names}
        paths = {"the kubelets": lambda _: kubelets, "dcgm-exporter": self._exporters}
        for source in [self.source] if self.source else list(paths):
            samples = {node: self._samples(path) for node, path in paths[source](names).items()}
            if any(samples.values()):
                self.source = source
                return samples
        self.source, self._not_before = "", time.monotonic() + RETRY_SECONDS
        return {}

    def _exporters(self, nodes: list[str]) -> Mapping[str, str]:
        """Find the paths of dcgm-exporter's pods on these nodes."""
        paths = {}
        for labels in EXPORTERS:
            try:
                exporters = self._kube.in_namespace("").get_all("Pod", labels=labels)
            except KitError:
                continue
            for pod in exporters:
                node, meta = pod["spec"].get("nodeName"), pod["metadata"]
                if node in nodes and pods.phase(pod) == "Running":
                    path = self._kube.in_namespace(meta["namespace"]).path("Pod", meta["name"])
                    paths[node] = f"{path}:{PORT}/proxy/metrics"
        return paths

    def _samples(self, path: str) -> list[GpuSample]:
        try:
            text = self._kube.stream(path, about="the GPU metrics", params={}, seconds=READ_SECONDS)
            return read_gpus(text)
        except KitError:
            return []
