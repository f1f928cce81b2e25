"""Checks of a cluster before a workshop: capacity for all quotas, network isolation, where notebooks run.

Quotas that fit keep attendees out of each other's way: no pod ever waits for another's to end. Where they do
not fit, the scheduler takes pods in the order in which they came; and since the ranks of one run come one by
one, two runs may each hold half of what they need and wait for one another. Kubernetes does not know that
ranks belong together.
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
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, parse_quantity
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.spec import POOL
from trainyard_kit.workshop.attendees import LABEL, Quota
from trainyard_kit.workshop.jupyter import Jupyter

KINDS = ("cpu", "memory", GPU)
TRAINING = ("train", "training")  # pools of the kit's clusters at clouds
# Amazon's agent is there on every cluster, and does it only when it is told to.
AMAZON, AMAZON_AGENT, AMAZON_WORD = "aws-node", "aws-eks-nodeagent", "--enable-network-policy=true"
PLAIN = (
    "a cluster in plain mode is for one person: pods are processes of its user, and each attendee can read "
    "and change what all others have, and this user's files"
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
    """What attendees may request together, and what the nodes have free.

    Attributes:
        needed: By kind: cores, bytes, GPUs.
        free: The same, of what the nodes have less what others ask for.
        nodes: How many are Ready.
        training: How many of them are there for training: by their label, or else those with most cores.
        missing: How many more nodes like these it takes; None if there is none to go by.
        pattern: One of these nodes, or None.
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
            f"{_said(kind, self.free[kind])} free for {_said(kind, self.needed[kind])} of quotas"
            for kind in KINDS
            if self.needed[kind]
        ]
        return f"{self.nodes} nodes: " + ", ".join(parts)


def count(attendees: int, quota: Quota, nodes: Sequence[Object], other_pods: Iterable[Object]) -> Capacity:
    """Compare what so many attendees may request with what the nodes have free. Pure."""
    needed = {"cpu": parse_quantity(quota.cpu), "memory": parse_quantity(quota.memory), GPU: quota.gpus}
    needed = {kind: attendees * amount for kind, amount in needed.items()}
    ready = [node for node in nodes if is_ready(node) and not node["spec"].get("unschedulable")]
    has = [{kind: allocatable(node, kind) for kind in KINDS} for node in ready]
    running = [pod for pod in other_pods if not pods.finished(pod)]
    in_use = {kind: sum(_asked(pod, kind) for pod in running) for kind in KINDS}
    free = {kind: max(0.0, sum(node[kind] for node in has) - in_use[kind]) for kind in KINDS}
    training = _training(ready)
    pattern = next(iter(training), None)
    return Capacity(needed, free, len(ready), len(training), _missing(needed, free, pattern), pattern)


def _training(ready: Sequence[Object]) -> list[Object]:
    """Select the training nodes, which are those that a provider can add more of."""
    pools = [(node["metadata"].get("labels") or {}).get(POOL) for node in ready]
    if any(pools):
        return [node for node, pool in zip(ready, pools, strict=True) if pool in TRAINING]
    most = max((allocatable(node, "cpu") for node in ready), default=0)
    return [node for node in ready if allocatable(node, "cpu") == most]


def _missing(needed: Mapping[str, Any], free: Mapping[str, Any], pattern: Object | None) -> int | None:
    """Count the nodes to add; None where no number of such nodes would do."""
    short = {kind: needed[kind] - free[kind] for kind in KINDS if needed[kind] > free[kind]}
    if not short:
        return 0
    has = {kind: allocatable(pattern, kind) if pattern else 0 for kind in short}
    return max(math.ceil(short[kind] / has[kind]) for kind in short) if all(has.values()) else None


def _asked(pod: Object, kind: str) -> float:
    requests = (
        (container.get("resources") or {}).get("requests") or {} for container in pod["spec"]["containers"]
    )
    return sum(parse_quantity(container.get(kind, "0")) for container in requests)


def _said(kind: str, amount: float) -> str:
    if kind == "memory":
        return format_bytes(amount)
    return f"{amount:g} {'GPUs' if kind == GPU else 'cores'}"


def survey(on: Cluster, people: int, quota: Quota) -> Capacity | None:
    """Compare the quotas of so many with the cluster's nodes; None if this user may not see nodes."""
    everywhere = on.kube.within("")
    answers = allowed(lambda: (on.kube.get_all("Node"), everywhere.get_all("Pod")))
    if answers is None:
        return None
    nodes, pods = answers
    theirs = {namespace["metadata"]["name"] for namespace in on.kube.get_all("Namespace", labels=LABEL)}
    return count(people, quota, nodes, [p for p in pods if p["metadata"]["namespace"] not in theirs])


def ensure(
    on: Cluster, capacity: Capacity | None, *, scale: bool = False, confirm: bool = False
) -> tuple[str, str]:
    """Describe the capacity and how to get enough of it; with ``scale``, add the missing nodes."""
    if capacity is None:
        return "not known", "this kubeconfig may not see nodes"
    if capacity.enough:
        return str(capacity), "enough for all at once"
    if capacity.missing is None:
        first = (
            ""
            if not isinstance(on, CloudCluster) or capacity.training
            else "; begin with cluster.scale(1), to go by it"
        )
        return str(
            capacity
        ), f"no node has as much as the quotas allow: pods that request it stay Pending{first}"
    if not isinstance(on, CloudCluster):
        local = "a local cluster may declare more than the machine has: recreate it with cpus= and memory="
        how = (
            local if isinstance(on, LocalCluster) else f"add {capacity.missing} nodes, or give smaller quotas"
        )
        return str(capacity), f"not enough for all at once: pods will wait for each other; {how}"
    nodes = capacity.training + capacity.missing
    report = on.check_quota(nodes, existing=capacity.training)
    if not scale:
        may = (
            ""
            if report.ok
            else "; " + "; ".join(f"{failure.name}: {failure.message}" for failure in report.failures)
        )
        how = f"{capacity.missing} nodes are missing: scale=True shows their price, and adds them{may}"
        return str(capacity), how
    report.raise_failures()
    on.scale_up_to(nodes, confirm=confirm)
    return str(capacity), f"{capacity.missing} nodes are being added"


def network(on: Cluster) -> tuple[str, str]:
    """Describe whether attendees are kept out of each other's pods."""
    if isinstance(on, LocalCluster):
        if on.is_plain:
            return ("open", PLAIN)
        return ("pods of others are kept out", "by the local cluster, where the kernel has nf_tables")
    daemonsets = allowed(lambda: on.kube.within("").get_all("DaemonSet"))
    if daemonsets is None:
        return "not known", "this kubeconfig may not see what enforces policies"
    if enforcer_name := enforcer(daemonsets):
        return "pods of others are kept out", f"by {enforcer_name}"
    return "open", "NetworkPolicies are stored, and nothing in this cluster enforces them"


def place_of_notebooks(on: Cluster, jupyter: Jupyter | None) -> tuple[str, str]:
    """Describe where attendees' notebooks run, and how they are reached."""
    if jupyter is not None:
        way = f"https://NAME.{jupyter.host}/" if jupyter.host else "kubectl port-forward"
        return "a pod for each", f"behind a token, by {way}: start.txt in the handout says how"
    if isinstance(on, LocalCluster):
        return "on this machine", "a local cluster is reached from 127.0.0.1 alone: use a JupyterHub here"
    return "on attendees' own machines", "with kubectl, a clone of the kit, and their kubeconfig"


def enforcer(daemonsets: Iterable[Object]) -> str:
    """Name the network plugin that enforces NetworkPolicies; empty where none is known to. Pure.

    The API server accepts the policies either way, so it is told by the DaemonSets of those plugins.
    """
    for daemonset in daemonsets:
        name = daemonset["metadata"]["name"]
        if name in ENFORCERS:
            return ENFORCERS[name]
        if name == AMAZON and _switched_on(daemonset):
            return "Amazon VPC CNI"
    return ""


def _switched_on(daemonset: Object) -> bool:
    containers = daemonset["spec"]["template"]["spec"]["containers"]
    return any(
        container["name"] == AMAZON_AGENT and AMAZON_WORD in (container.get("args") or [])
        for container in containers
    )
