"""What nodes and pods use, as tables: `kubectl top` in a notebook. Pure.

The figures are metrics-server's, means over its last ten to sixty seconds; a pod that has just started has
none.
"""

from collections.abc import Iterable

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import format_bytes, format_cores, parse_quantity


def node_usage(metrics: Iterable[Object], nodes: Iterable[Object]) -> Table:
    """Return the use of each node, with its share of what is allocatable there.

    Args:
        metrics: Objects of kind NodeMetrics.
        nodes: Objects of kind Node; one without metrics has dashes.
    """
    used = {each["metadata"]["name"]: each["usage"] for each in metrics}
    rows = []
    for node in sorted(nodes, key=lambda each: each["metadata"]["name"]):
        name, has = node["metadata"]["name"], node["status"].get("allocatable") or {}
        usage = used.get(name, {})
        shares = [_share(usage.get(kind), has.get(kind)) for kind in ("cpu", "memory")]
        rows.append((name, _cpu(usage.get("cpu")), shares[0], format_bytes(usage.get("memory")), shares[1]))
    return Table(("node", "cpu", "of cpu", "memory", "of memory"), rows, empty="no nodes")


def pod_usage(metrics: Iterable[Object]) -> Table:
    """Return the use of each pod, the sum of its containers', largest CPU first."""
    rows = []
    for pod in metrics:
        usages = [container["usage"] for container in pod["containers"]]
        cpu, memory = (sum(parse_quantity(usage[kind]) for usage in usages) for kind in ("cpu", "memory"))
        rows.append((cpu, memory, pod["metadata"]["name"]))
    rows.sort(key=lambda row: (-row[0], row[2]))
    return Table(
        ("pod", "cpu", "memory"),
        [(name, _cpu(cpu), _memory(memory)) for cpu, memory, name in rows],
        empty="no pod has figures yet",
    )


def _cpu(quantity: str | float | None) -> str:
    """Return cores with three digits behind the point, metrics-server's nanocores being noise."""
    return "-" if quantity is None else format_cores(round(parse_quantity(quantity), 3))


def _memory(size: float) -> str:
    return format_bytes(round(size))


def _share(used: str | None, has: str | None) -> str:
    if used is None or has is None or not parse_quantity(has):
        return "-"
    return f"{parse_quantity(used) / parse_quantity(has):.0%}"
