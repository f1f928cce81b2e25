"""The nodes of a cluster as tables; the error for users who may not list nodes says what to use instead."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import pods
from kitlib.k8s.client import Kube
from kitlib.k8s.events import make_event, write_event
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU, allocatable, format_bytes, format_cores
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

METRICS = {"nodes": "NodeMetrics", "pods": "PodMetrics"}
SHORTAGES = "trainyard/shortages"
PRESSURES = {
    "MemoryPressure": ("memory", "kubectl top pods -A --sort-by=memory"),
    "DiskPressure": ("disk", "kubectl get pvc -A"),
    "PIDPressure": ("processes", "kubectl get pods -A"),
}
PAST = {
    "stop": "stopped",
    "shutdown": "stopped",
    "start": "started",
    "isolate": "isolated",
    "reconnect": "reconnected",
}
COLUMNS = ("node", "status", "cpu", "memory", "gpus", "version", "age")


def list_nodes(kube: Kube, kind: str = "Node") -> list[Object]:
    """List the nodes, or their NodeMetrics; the error for a user who may not says what to use instead."""
    try:
        return kube.get_all(kind)
    except Rejected as error:
        if error.status != 403:
            raise
        raise Rejected(
            f'this kubeconfig leads to the namespace "{kube.namespace}", and may not see nodes',
            about=f'nodes of cluster "{kube.cluster}"',
            fix='`cluster.pods()` tells the node of each of your pods, `cluster.top("pods")` what they use; '
            "only the cluster's administrator may list nodes",
            status=error.status,
            reason=error.reason,
        ) from error


def is_ready(node: Object) -> bool:
    return pods.has_condition(node, "Ready")


def problems(node: Object) -> list[str]:
    """List a node's problems: conditions that are true beside Ready, and a cordon."""
    kinds = [kind for kind in pods.conditions(node) if kind != "Ready"]
    return kinds + (["SchedulingDisabled"] if (node.get("spec") or {}).get("unschedulable") else [])


def shortages(nodes: Iterable[Object]) -> tuple[str, ...]:
    """List the resources that nodes lack, their largest users, and a command that frees them.

    A local cluster's kubelet annotates its nodes; other nodes have conditions alone.
    """
    lines: dict[str, None] = {}
    for node in nodes:
        annotated = (node["metadata"].get("annotations") or {}).get(SHORTAGES)
        for item in json.loads(annotated) if annotated else ():
            lines[f"{item['resource']}: {item['what']}; {item['fix']}"] = None
        if not annotated:
            name = node["metadata"]["name"]
            for kind in [kind for kind in problems(node) if kind in PRESSURES]:
                lines[f"{PRESSURES[kind][0]}: node {name} reports {kind}; {PRESSURES[kind][1]}"] = None
    return tuple(lines)


def readiness(nodes: Iterable[Object]) -> str:
    """Describe how many nodes are Ready."""
    ready = [is_ready(node) for node in nodes]
    return f"{sum(ready)} of {len(ready)} nodes are Ready"


def table(nodes: Iterable[Object]) -> Table:
    """Tabulate nodes with their allocatable resources."""
    rows = []
    for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
        has = node["status"].get("allocatable") or {}
        rows.append(
            (
                node["metadata"]["name"],
                ", ".join(["Ready" if is_ready(node) else "NotReady", *problems(node)]),
                format_cores(has.get("cpu")),
                format_bytes(has.get("memory")),
                f"{allocatable(node, GPU):g}",
                (node["status"].get("nodeInfo") or {}).get("kubeletVersion"),
                age(node["metadata"]["creationTimestamp"]),
            )
        )
    return Table(COLUMNS, rows, empty="no nodes")


def usage(kube: Kube, of: str) -> Table:
    """Resource usage of nodes or of pods, as `Cluster.top` has it."""
    from kitlib.metrics.node_usage import node_usage, pod_usage  # with numpy, a fifth of the command line

    if of not in METRICS:
        raise BadInput("top is for nodes and for pods", about=f"top({of!r})", fix='`cluster.top("pods")`')
    try:
        figures = list_nodes(kube, METRICS[of]) if of == "nodes" else kube.get_all(METRICS[of])
    except Rejected as error:
        if error.status not in (404, 503):
            raise
        what, about = f"there are no usage figures of {of}", f'metrics-server of cluster "{kube.cluster}"'
        fix = "try again in 30 seconds if the cluster is new; otherwise install metrics-server"
        raise Rejected(what, about=about, fix=fix, status=error.status, reason=error.reason) from error
    return pod_usage(figures) if of == "pods" else node_usage(figures, list_nodes(kube))


def write_switched(kube: Kube, node: str, verb: str, *, at: datetime) -> None:
    """Write the Event that a node was switched on purpose."""
    involved = {"metadata": {"name": node, "uid": node}}  # kubelets write the name for both
    message = f"node {node} was {PAST[verb]} on purpose"
    write_event(kube, make_event(involved, "Node", PAST[verb].capitalize(), message, at=at))


def unsupported(verb: str, provider: str, *, about: str) -> BadInput:
    """Build the error of a provider that cannot do something with its nodes."""
    what = f"the kit cannot {verb} nodes of a cluster of the provider {provider}"
    return BadInput(what, about=about, fix='use a local cluster: `kit.create_cluster("local")`')


def wait_ready(kube: Kube, *, timeout: float | None) -> None:
    with progress(f"cluster {kube.cluster}") as line:
        wait(
            watch_objects(kube, WatchSpec("Node")),
            timeout=timeout,
            what="the nodes to be Ready",
            until=lambda snapshot: bool(snapshot["Node"]) and all(map(is_ready, snapshot["Node"].values())),
            about=f'cluster "{kube.cluster}"',
            resume="`cluster.wait_ready()` waits again",
            describe=lambda snapshot: readiness(snapshot["Node"].values()),
            report=line.update,
        )


def link_ends(between: Sequence[str], node: str) -> tuple[str, ...]:
    """Return the one or two ends of a link.

    Raises:
        BadInput: There is another number of them.
    """
    if bool(node) == bool(between) or isinstance(between, str) or len(between) not in (0, 2):
        raise BadInput(
            "a link is of a node, or between two racks, zones or nodes",
            about=f"between={between!r}, node={node!r}",
            fix='`cluster.link(bandwidth="1Gbit", node="node-3")`, or `between=("rack-a", "rack-b")`',
        )
    return (node,) if node else tuple(between)
