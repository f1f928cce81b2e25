"""CPUs and GPUs of a job's pods; the defaults follow from the nodes of the cluster.

A pod with GPUs has no CPU limit, which would starve its data loader. A pod without GPUs sees none: images
with CUDA ask the NVIDIA container runtime for all GPUs of a node, unless NVIDIA_VISIBLE_DEVICES is ``void``.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.clusters import Cluster
from kitlib.clusters.nodes import is_ready, list_nodes
from kitlib.errors import BadInput
from kitlib.k8s import pods
from kitlib.k8s.client import allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, requested

NO_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
# Without it NCCL says only "unhandled system error": its own reason is what `why` reads.
NCCL_WARNINGS = {"name": "NCCL_DEBUG", "value": "WARN"}
GPU_COUNT = "TRAINYARD_GPUS"  # with it a trainer can say that torch sees fewer GPUs than its pod requested
IDLE_GPUS_VARIABLE = "TRAINYARD_IDLE_GPUS"  # "fail" where a rank that finds none ends with an error
NOT_READY = "node.kubernetes.io/not-ready"
STATES = ("not-ready", "unreachable", "unschedulable", "memory-pressure", "disk-pressure", "pid-pressure")
TRANSIENT = [{"key": f"node.kubernetes.io/{state}", "operator": "Exists"} for state in STATES]
RESOURCES: Mapping[str, tuple[str, str, Callable[[float], str]]] = {
    GPU: ("gpus", "GPUs", "{:g}".format),
    "cpu": ("cpu", "cores", "{:g}".format),
    "memory": ("memory", "of memory", format_bytes),
}
GPU_TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeResources:
    """Allocatable resources of the nodes on which pods of a job may run.

    Attributes:
        cores: Of each node for pods without GPUs.
        gpu_nodes: GPUs of each node for pods with GPUs.
    """

    cores: tuple[float, ...] = ()
    gpu_nodes: tuple[int, ...] = ()

    @classmethod
    def read(cls, cluster: Cluster, tolerations: Sequence[Mapping[str, Any]] = ()) -> "NodeResources":
        """Read the nodes; where a user may not list them, the GPUs of the namespace's quota.

        GPUs of a cloud's nodes that are not there, or not ready yet, count.
        """
        nodes = allowed(lambda: list_nodes(cluster.kube))
        if nodes is None:
            quotas = allowed(lambda: cluster.kube.get_all("ResourceQuota")) or ()
            hard = (quota["spec"].get("hard") or {} for quota in quotas)
            return cls(gpu_nodes=tuple(int(quota.get(f"requests.{GPU}", 0)) for quota in hard))
        usable = [node for node in nodes if is_ready(node) and not node["spec"].get("unschedulable")]
        cpu_nodes = (node for node in usable if tolerated(node, tolerations))
        gpu_nodes = (node for node in usable if tolerated(node, [*tolerations, GPU_TOLERATION]))
        gpus = tuple(int(allocatable(node, GPU)) for node in gpu_nodes)
        cores = tuple(allocatable(node, "cpu") for node in cpu_nodes)
        return cls(cores, max(gpus, cluster.training_gpus(), key=sum))

    def gpus_of_each(self, pods: int, *, processes: int = 1) -> int:
        """Choose the GPUs of each of so many pods: one for each process, if there are enough; else fewer.

        Example:
            >>> NodeResources(gpu_nodes=(1, 1)).gpus_of_each(2)
            1
        """
        for gpus in range(processes, 0, -1):
            if sum(count // gpus for count in self.gpu_nodes) >= pods:
                return gpus
        if total := sum(self.gpu_nodes):
            log.warning("%s pods train without GPUs: the nodes have %s; gpus=1 waits for more", pods, total)
        return 0

    def cpu_limit(self, pods: int, *, processes: int = 1) -> str:
        """Compute the CPU limit of each of so many pods: a node's cores, divided by the pods on it.

        It is at least one core for each process, which is also the limit where the nodes are not known.

        Example:
            >>> NodeResources(cores=(3.92, 3.92)).cpu_limit(4)
            '1960m'
        """
        if not self.cores:
            return str(processes)
        share = max(self.cores) / math.ceil(pods / len(self.cores))
        return f"{int(1000 * share)}m" if share > processes else str(processes)


def check_room(job_objects: Sequence[Object], cluster: Cluster, *, about: str) -> None:
    """Check that a node of the cluster, as large as it is, has what a pod requests; other pods do not count.

    Nodes that are off, cordoned or under pressure count, and GPUs of a cloud's nodes that do not exist yet.
    """
    all_nodes = allowed(lambda: list_nodes(cluster.kube)) or []
    for spec in pod_specs(list(job_objects)):
        nodes = [node for node in all_nodes if tolerated(node, [*spec.get("tolerations", ()), *TRANSIENT])]
        for resource, (keyword, title, show) in RESOURCES.items():
            amount = requested(spec, resource)
            largest = max((allocatable(node, resource) for node in nodes), default=0.0)
            if resource == GPU:
                largest = max(largest, *cluster.training_gpus(), 0)
            if nodes and amount > largest:
                what = (
                    f"a pod requests {show(amount)} {title}, and the largest of {len(all_nodes)} nodes has "
                )
                fix = f"set `{keyword}=` to at most {show(largest)}, or add a node with more"
                if cluster.provider == "local" and resource == GPU:
                    recreate = f'name="{cluster.name}", gpus={amount:g}, recreate=True'
                    again = f'`kit.create_cluster("local", {recreate})`'
                    fix = f"set `gpus=` to at most {largest:g}, or create nodes that declare them: {again}"
                raise BadInput(f"{what}{show(largest)}", about=about, fix=fix)


def pod_specs(part: object) -> Iterator[Object]:
    """Find the specs of pods in objects of any kind, and their equivalent in a TrainJob."""
    if isinstance(part, list):
        for item in part:
            yield from pod_specs(item)
    elif isinstance(part, Mapping):
        if "containers" in part:
            yield dict(part)
            return
        if part.get("kind") == "ConfigMap":  # parameter servers: their master creates these pods
            data = part.get("data") or {}
            part = {name: json.loads(data[name]) for name in ("ps.json", "worker.json") if name in data}
        if "resourcesPerNode" in part:
            yield {
                "containers": [{"resources": part["resourcesPerNode"]}],
                "tolerations": [{"operator": "Exists"}],
            }
        for item in part.values():
            yield from pod_specs(item)


def tolerated(node: Object, tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether pods with these tolerations are scheduled on a node.

    A node that has just become Ready keeps the taint of one that is not for a moment.
    """
    taints = node["spec"].get("taints") or []
    hard = [taint for taint in taints if taint["effect"] != "PreferNoSchedule" and taint["key"] != NOT_READY]
    return all(any(pods.tolerates(toleration, taint) for toleration in tolerations) for taint in hard)
