"""The OOM killer's order: ``oom_score_adj`` of containers.

By the kubelet's formula. The cluster's own processes have the lowest scores (``runtime/processes.py``).

Source: pkg/kubelet/qos/policy.go and pkg/apis/core/v1/helper/qos of Kubernetes 1.37
"""

from typing import Any

from localkube.api_path import Object
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.allocation import of_container, sum_of_containers
from localkube.kubelet.status.restart_policy import is_sidecar

GUARANTEED, BURSTABLE, BEST_EFFORT = "Guaranteed", "Burstable", "BestEffort"
LAST, FIRST = -997, 1000
NODE_CRITICAL = "system-node-critical"
COUNTED = ("cpu", "memory")


def oom_score(pod: Object, container: Object, *, memory: int) -> int:
    """Compute the ``oom_score_adj`` of a container, by its pod's quality of service and its request.

    Args:
        memory: The node's, in bytes.
    """
    spec = pod["spec"]
    if spec.get("priorityClassName") == NODE_CRITICAL:
        return LAST
    quality = qos_class(pod)
    if quality != BURSTABLE:
        return LAST if quality == GUARANTEED else FIRST
    extra, requested = _extra_per_container(pod), of_container(container, "memory")
    score = 1000 - (1000 * (requested + extra)) // memory
    if is_sidecar(container):
        least = min(of_container(regular, "memory") for regular in spec["containers"])
        score = min(score, 1000 - 1000 * (least + extra) // memory)
    return min(max(score, 1000 + LAST), FIRST - 1)


def qos_class(pod: Object) -> str:
    """Read a pod's QoS class, or compute it if the API server has not."""
    if reported := (pod.get("status") or {}).get("qosClass"):
        return reported
    spec = pod["spec"]
    whole_pod = spec.get("resources") or {}
    parts = (
        [whole_pod]
        if whole_pod.get("requests") or whole_pod.get("limits")
        else [
            container.get("resources") or {}
            for container in (*(spec.get("initContainers") or ()), *spec["containers"])
        ]
    )
    requests, limits = _totals(parts, "requests"), _totals(parts, "limits")
    if not requests and not limits:
        return BEST_EFFORT
    limited = all(_totals([part], "limits").keys() == set(COUNTED) for part in parts)
    same = all(limits.get(name) == amount for name, amount in requests.items())
    return GUARANTEED if limited and same and len(requests) == len(limits) else BURSTABLE


def _totals(parts: list[Object], kind: str) -> dict[str, Any]:
    """Sum the amounts above zero, by resource."""
    totals: dict[str, Any] = {}
    for part in parts:
        for name, text in (part.get(kind) or {}).items():
            if name in COUNTED and (amount := parse(str(text))) > 0:
                totals[name] = totals.get(name, 0) + amount
    return totals


def _extra_per_container(pod: Object) -> int:
    """Divide the pod-level request beyond its containers' requests among them."""
    spec = pod["spec"]
    requested = of_container(spec, "memory")
    if not requested:
        return 0
    count = len(spec["containers"]) + len(spec.get("initContainers") or ())
    return int((requested - sum_of_containers(pod, "memory")) / count)
