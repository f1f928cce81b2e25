"""Which pod is evicted first for a resource that the machine is low on, and what is said of it. Pure.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#pod-selection-for-kubelet-eviction
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localkube.kubelet.quantity import quantity, whole
from localkube.kubelet.resources.allocation import request
from localkube.kubelet.resources.pressure import SIGNALS, Observation, Threshold

Object = Mapping[str, Any]


@dataclass(frozen=True)
class PodUsage:
    """What a pod uses of one resource: all of it, and what each of its containers does."""

    pod: Object
    used: int
    containers: Mapping[str, int] = field(default_factory=dict)


def ranked(usages: Iterable[PodUsage], resource: str) -> list[PodUsage]:
    """Order pods for eviction: those above their requests, by priority, by how much they are above.

    Processes are not requested: there the priority comes first.
    """

    def key(each: PodUsage) -> tuple:
        above = each.used - request(each.pod, resource)
        priority = each.pod["spec"].get("priority") or 0
        return (priority, -each.used) if resource == "pids" else (above <= 0, priority, -above)

    return sorted(usages, key=key)


def eviction_message(usage: PodUsage, threshold: Threshold, seen: Observation) -> str:
    """Say why a pod is evicted, in the kubelet's words."""
    resource = SIGNALS[threshold.signal][1]
    binary = resource in ("memory", "ephemeral-storage")
    least, left = (
        quantity(value, binary=binary) for value in (threshold.quantity(seen.capacity), seen.available)
    )
    text = f"The node was low on resource: {resource}. Threshold quantity: {least}, available: {left}. "
    if not binary:
        return text
    spec = usage.pod["spec"]
    for container in (*spec["containers"], *(spec.get("initContainers") or [])):
        name, used = container["name"], usage.containers.get(container["name"], 0)
        requested = ((container.get("resources") or {}).get("requests") or {}).get(resource, "0")
        if used > whole(requested):
            amount = quantity(used, binary=True)
            text += f"Container {name} was using {amount}, request is {requested}, "
            text += f"has larger consumption of {resource}. "
    return text
