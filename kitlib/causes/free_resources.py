"""Free resources of nodes, and the holders of the others, for pods that cannot be scheduled. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from kitlib.causes.facts import Facts
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import allocatable, format_bytes, requested

ALL_PODS = "Pod of all namespaces"  # read only where a pod of the run has no node
MAX_HOLDERS = 3
BYTES = ("memory", "ephemeral-storage")


def needed(spec: Object, resource: str) -> float:
    """Compute what a pod requests of a resource; each pod is one of ``pods``."""
    return 1.0 if resource == "pods" else requested(spec, resource)


def shortage(facts: Facts, resource: str, amount: float) -> tuple[str, str]:
    """Describe how much of a resource is free, which runs hold the others, and what to do.

    Args:
        facts: With the nodes and all pods where this user may read them.
        resource: ``cpu``, ``memory``, ``nvidia.com/gpu`` … or ``pods``.
        amount: What a pod requests.

    Returns:
        Two texts; empty if not known.
    """
    by_node, by_holder = defaultdict[str, float](float), defaultdict[str, float](float)
    for pod in facts.of(ALL_PODS) or facts.of("Pod"):
        node = pod["spec"].get("nodeName")
        if node and not pods.finished(pod) and (count := needed(pod["spec"], resource)):
            by_node[node] += count
            by_holder[holder(facts, pod)] += count
    total = {node["metadata"]["name"]: allocatable(node, resource) for node in facts.of("Node")}
    largest = max(total, key=lambda name: total[name], default="")
    if largest and total[largest] < amount:
        if not total[largest]:
            return "none has any", f"request no {resource}, or add nodes that have it"
        has = f"the largest, {largest}, has {_format(total[largest], resource)} in all"
        return has, f"request less {resource}, or add larger nodes"
    by_amount = sorted(by_holder.items(), key=lambda item: -item[1])
    parts = [f"{name} holds {_format(count, resource)}" for name, count in by_amount[:MAX_HOLDERS]]
    parts += [f"{len(by_amount) - MAX_HOLDERS} others hold some"] if by_amount[MAX_HOLDERS:] else []
    if facts.of(ALL_PODS) and largest:
        free = {name: max(0.0, total[name] - by_node[name]) for name in total}
        best = max(free, key=lambda name: free[name])
        parts = [f"most is free on {best}: {_format(free[best], resource)}", *parts]
    return "; ".join(parts), ""


def holder(facts: Facts, pod: Object) -> str:
    """Name the holder of a pod's resources: its run or itself, and its namespace if it differs."""
    run, place = job_kinds.run_of(pod), pod["metadata"].get("namespace", "")
    own = next((item["metadata"].get("namespace", "") for item in facts.pods), "")
    name = f"run {run}" if run else f"pod {pod['metadata']['name']}"
    return name if place == own else f"{name} in namespace {place}"


def holders_of_port(facts: Facts, ports: Iterable[int]) -> str:
    """Name the pods that use any of some host ports."""
    pod_list, host_ports = facts.of(ALL_PODS) or facts.of("Pod"), set(ports)
    names = dict.fromkeys(
        f"{holder(facts, pod)} on {pod['spec']['nodeName']}"
        for pod in pod_list
        for container in pod["spec"].get("containers") or []
        for port in container.get("ports") or []
        if pod["spec"].get("nodeName") and not pods.finished(pod) and port.get("hostPort") in host_ports
    )
    return ", ".join(list(names)[:MAX_HOLDERS])


def _format(amount: float, resource: str) -> str:
    return format_bytes(amount) if resource in BYTES else f"{amount:g}"
