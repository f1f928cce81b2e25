"""The nodes of a cluster, for those who may see them; others are told what they may see in their stead."""

from collections.abc import Iterable

from kitlib.display.tables import Table, age
from kitlib.errors import Rejected
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import format_bytes, format_cores

GPU = "nvidia.com/gpu"
COLUMNS = ("node", "status", "cpu", "memory", "gpus", "version", "age")


def seen(kube: Kube, kind: str = "Node") -> list[Object]:
    """Return what the API tells of nodes.

    Args:
        kube: The cluster's API.
        kind: ``Node``, or ``NodeMetrics``.

    Raises:
        Rejected: This user may not see nodes.
    """
    try:
        return kube.get_all(kind)
    except Rejected as error:
        if error.status != 403:
            raise
        raise Rejected(
            f'this kubeconfig leads to the namespace "{kube.namespace}", and may not see nodes',
            about=f'nodes of cluster "{kube.cluster}"',
            fix='cluster.pods() tells the node of each of your pods, cluster.top("pods") what they use; '
            "the nodes are for the cluster's administrator",
            status=error.status,
            reason=error.reason,
        ) from error


def is_ready(node: Object) -> bool:
    """Return whether a node takes pods."""
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in (node.get("status") or {}).get("conditions") or []
    )


def readiness(nodes: Iterable[Object]) -> str:
    """Return how many are Ready, in words."""
    ready = [is_ready(each) for each in nodes]
    return f"{sum(ready)} of {len(ready)} nodes are Ready"


def table(nodes: Iterable[Object]) -> Table:
    """Return them with what is allocatable on each."""
    rows = []
    for node in sorted(nodes, key=lambda each: each["metadata"]["name"]):
        has = node["status"].get("allocatable") or {}
        rows.append(
            (
                node["metadata"]["name"],
                "Ready" if is_ready(node) else "NotReady",
                format_cores(has.get("cpu")),
                format_bytes(has.get("memory")),
                has.get(GPU, "0"),
                (node["status"].get("nodeInfo") or {}).get("kubeletVersion"),
                age(node["metadata"]["creationTimestamp"]),
            )
        )
    return Table(COLUMNS, rows, empty="no nodes")
