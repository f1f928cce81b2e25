"""Checks of a cluster before a workshop: capacity for all quotas, network isolation, where notebooks run.

If all quotas fit, no attendee's pod waits for another's. Otherwise the scheduler places pods in the order of
their creation, and two runs may deadlock, each with half of its ranks placed, because the default scheduler
has no gang scheduling.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.clusters import Cluster
from kitlib.clusters.local import LocalCluster
from kitlib.clusters.nodes import is_ready
from kitlib.k8s import pods
from kitlib.k8s.client import allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, parse_quantity, requested
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.spec import POOL
from trainyard_kit.workshop.attendees import LABEL, Quota
from trainyard_kit.workshop.jupyter import Jupyter

KINDS = ("cpu", "memory", GPU)
TRAINING = ("train", "training")  # node pools of the kit's cloud clusters
# Amazon's agent runs on every EKS cluster, and enforces policies only with this flag.
AMAZON, AMAZON_AGENT, AMAZON_FLAG = "aws-node", "aws-eks-nodeagent", "--enable-network-policy=true"
PLAIN = (
    "a cluster in plain mode is for one user: pods are this user's processes, and attendees can read and "
    "change each other's files and this user's"
)
ENFORCERS = {
    "calico-node": "Calico",
    "canal": "Calico",
    "cilium": "Cilium",
    "anetd": "Google's dataplane V2",
    "antrea-agent": "Antrea",
    "weave-net": "Weave Net",
    "kube-router": "kube-router",
    "ovnkube-node": "OVN-Kubernetes",
}


@dataclass(frozen=True)
class Capacity:
    """The sum of attendees' quotas, and the free capacity of the nodes.

    Attributes:
        needed: By resource: cores, bytes, GPUs.
        free: By resource: what the nodes have, less the requests of other pods.
        nodes: Number of Ready nodes.
        training: Number of training nodes among them, by label, or else those with most cores.
        missing: Number of such nodes to add; None if more of them would not suffice.
        pattern: A training node, or None.
    """

    needed: Mapping[str, float]
    free: Mapping[str, float]
    nodes: int
    training: int
    missing: int | None
    pattern: Object | None

    @property
    def enough(self) -> bool:
        """Whether all quotas fit at once."""
        return all(self.free[kind] >= self.needed[kind] for kind in KINDS)

    def __str__(self) -> str:
        parts = [
            f"{_format(kind, self.free[kind])} free for {_format(kind, self.needed[kind])} of quotas"
            for kind in KINDS
            if self.needed[kind]
        ]
        return f"{self.nodes} nodes: " + ", ".join(parts)


def count(attendees: int, quota: Quota, nodes: Sequence[Object], other_pods: Iterable[Object]) -> Capacity:
    """Compare the quotas of this many attendees with the free capacity of the nodes. Pure."""
    needed = {"cpu": parse_quantity(quota.cpu), "memory": parse_quantity(quota.memory), GPU: quota.gpus}
    needed = {kind: attendees * amount for kind, amount in needed.items()}
    ready = [node for node in nodes if is_ready(node) and not node["spec"].get("unschedulable")]
    running = [pod for pod in other_pods if not pods.finished(pod)]
    total = {kind: sum(allocatable(node, kind) for node in ready) for kind in KINDS}
    taken = {kind: sum(requested(pod["spec"], kind) for pod in running) for kind in KINDS}
    free = {kind: max(0.0, total[kind] - taken[kind]) for kind in KINDS}
    training = _training(ready)
    pattern = next(iter(training), None)
    return Capacity(needed, free, len(ready), len(training), _missing(needed, free, pattern), pattern)


def _training(ready: Sequence[Object]) -> list[Object]:
    """Select the training nodes: those of which a provider can add more."""
    pools = [(node["metadata"].get("labels") or {}).get(POOL) for node in ready]
    if any(pools):
        return [node for node, pool in zip(ready, pools, strict=True) if pool in TRAINING]
    most = max((allocatable(node, "cpu") for node in ready), default=0)
    return [node for node in ready if allocatable(node, "cpu") == most]


def _missing(needed: Mapping[str, Any], free: Mapping[str, Any], pattern: Object | None) -> int | None:
    """Count the nodes to add; None if no number of such nodes would suffice."""
    shortage = {kind: needed[kind] - free[kind] for kind in KINDS if needed[kind] > free[kind]}
    if not shortage:
        return 0
    size = {kind: allocatable(pattern, kind) if pattern else 0 for kind in shortage}
    return max(math.ceil(shortage[kind] / size[kind]) for kind in shortage) if all(size.values()) else None


def _format(kind: str, amount: float) -> str:
    if kind == "memory":
        return format_bytes(amount)
    return f"{amount:g} {'GPUs' if kind == GPU else 'cores'}"


def survey(cluster: Cluster, attendees: int, quota: Quota) -> Capacity | None:
    """Compare the attendees' quotas with the cluster's nodes; None if this user may not list nodes."""
    kube = cluster.kube
    lists = allowed(lambda: (kube.get_all("Node"), kube.in_namespace("").get_all("Pod")))
    if lists is None:
        return None
    nodes, all_pods = lists
    namespaces = {namespace["metadata"]["name"] for namespace in kube.get_all("Namespace", labels=LABEL)}
    other_pods = [pod for pod in all_pods if pod["metadata"]["namespace"] not in namespaces]
    return count(attendees, quota, nodes, other_pods)


def ensure(
    cluster: Cluster, capacity: Capacity | None, *, scale: bool = False, confirm: bool = False
) -> tuple[str, str]:
    """Describe the capacity and how to increase it; with ``scale``, add the missing nodes."""
    if capacity is None:
        return "not known", "this kubeconfig may not list nodes"
    if capacity.enough:
        return str(capacity), "enough for all quotas"
    if capacity.missing is None:
        fix = "no node has as much as the quotas allow: pods that request it stay Pending"
        if isinstance(cluster, CloudCluster) and not capacity.training:
            fix += "; start with cluster.scale(1) to measure a node"
        return str(capacity), fix
    if not isinstance(cluster, CloudCluster):
        fix = f"add {capacity.missing} nodes, or use smaller quotas"
        if isinstance(cluster, LocalCluster):
            fix = "it may declare more than the machine has: recreate the cluster with `cpus=` and `memory=`"
        return str(capacity), f"not enough for all quotas: pods will wait for each other; {fix}"
    nodes = capacity.training + capacity.missing
    report = cluster.check_quota(nodes, existing=capacity.training)
    if not scale:
        failures = "".join(f"; {failure.name}: {failure.message}" for failure in report.failures)
        fix = f"{capacity.missing} nodes are missing: `scale=True` shows their cost, and adds them{failures}"
        return str(capacity), fix
    report.raise_failures()
    cluster.scale_up_to(nodes, confirm=confirm)
    return str(capacity), f"{capacity.missing} nodes are being added"


def network(cluster: Cluster) -> tuple[str, str]:
    """Describe whether attendees' pods are isolated from each other."""
    if isinstance(cluster, LocalCluster):
        if cluster.is_plain:
            return ("open", PLAIN)
        return ("isolated", "by the local cluster, if the kernel has nf_tables")
    daemonsets = allowed(lambda: cluster.kube.in_namespace("").get_all("DaemonSet"))
    if daemonsets is None:
        return "not known", "this kubeconfig may not list DaemonSets"
    if enforcer_name := enforcer(daemonsets):
        return "isolated", f"by {enforcer_name}"
    return "open", "nothing in this cluster enforces NetworkPolicies"


def notebook_location(cluster: Cluster, jupyter: Jupyter | None) -> tuple[str, str]:
    """Describe where attendees' notebooks run, and how to reach them."""
    if jupyter is not None:
        address = f"https://NAME.{jupyter.host}/" if jupyter.host else "kubectl port-forward"
        return "a pod for each", f"at {address}, with a token: see start.txt in the handout"
    if isinstance(cluster, LocalCluster):
        return "on this machine", "a local cluster is only reachable from 127.0.0.1: use a JupyterHub here"
    return "on attendees' own machines", "with kubectl, a clone of the kit, and their kubeconfig"


def enforcer(daemonsets: Iterable[Object]) -> str:
    """Name the network plugin that enforces NetworkPolicies; empty if none is known. Pure.

    It is detected by its DaemonSet, because the API server accepts policies without any.
    """
    for daemonset in daemonsets:
        name = daemonset["metadata"]["name"]
        if name in ENFORCERS:
            return ENFORCERS[name]
        if name == AMAZON and _enforces_policies(daemonset):
            return "Amazon VPC CNI"
    return ""


def _enforces_policies(daemonset: Object) -> bool:
    containers = daemonset["spec"]["template"]["spec"]["containers"]
    return any(
        container["name"] == AMAZON_AGENT and AMAZON_FLAG in (container.get("args") or [])
        for container in containers
    )
