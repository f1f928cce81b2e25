"""CPU and memory that a node has allocated to its pods, and the resizes that wait for capacity.

Source: pkg/kubelet/allocation of Kubernetes 1.37
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.quantity import milli, whole
from localkube.kubelet.status.restart_policy import is_sidecar

# In thousandths of a core, and in bytes.
UNITS: dict[str, Callable[[str], int]] = {"cpu": milli, "memory": whole}
QUALITIES = ("Guaranteed", "Burstable", "BestEffort")


def requests(pod: Object) -> dict[str, int]:
    """Compute what a pod requests: its containers and sidecars together, or what an init container needs.

    Example:
        >>> requests({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}})
        {'cpu': 500, 'memory': 0}
    """
    return {name: request(pod, name) for name in UNITS}


def request(pod: Object, name: str) -> int:
    spec, unit = pod["spec"], UNITS.get(name, whole)
    whole_pod = ((spec.get("resources") or {}).get("requests") or {}).get(name)
    if whole_pod:
        return unit(whole_pod)
    return sum_of_containers(pod, name) + unit((spec.get("overhead") or {}).get(name, "0"))


def sum_of_containers(pod: Object, name: str) -> int:
    """Sum the requests of a pod's containers and sidecars, or take what an init container needs."""
    spec = pod["spec"]
    sidecars = largest = 0
    for container in spec.get("initContainers") or []:
        requested = of_container(container, name)
        sidecars += requested if is_sidecar(container) else 0
        largest = max(largest, sidecars if is_sidecar(container) else sidecars + requested)
    together = sidecars + sum(of_container(container, name) for container in spec["containers"])
    return max(largest, together)


def of_container(container: Object, name: str) -> int:
    unit = UNITS.get(name, whole)
    return unit(((container.get("resources") or {}).get("requests") or {}).get(name, "0"))


@dataclass(frozen=True)
class _Waiting:
    """A resize that did not fit; ``retry`` evaluates it again."""

    pod: Object
    retry: Callable[[], None]
    grows: bool
    turn: int

    @property
    def rank(self) -> tuple[Any, ...]:
        """The kubelet's order: resizes that do not grow first, then by priority, QoS class and age."""
        quality = (self.pod.get("status") or {}).get("qosClass", QUALITIES[-1])
        return self.grows, -(self.pod["spec"].get("priority") or 0), QUALITIES.index(quality), self.turn


@dataclass
class Allocations:
    """The allocations of one node."""

    capacity: Mapping[str, str]
    _allocated: dict[str, dict[str, int]] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _turns: int = 0

    def allocate(self, uid: str, requested: Mapping[str, int]) -> None:
        """Record a pod's allocation; if it is less than before, waiting resizes are retried."""
        before = self._allocated.get(uid, {})
        self._allocated[uid] = dict(requested)
        self._waiting.pop(uid, None)
        if any(requested[name] < before.get(name, 0) for name in UNITS):
            self.retry()

    def release(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        if self._allocated.pop(uid, None):
            self.retry()

    def shortage(self, uid: str, requested: Mapping[str, int]) -> str | None:
        """Explain why a pod's request does not fit, with the kubelet's message; None if it fits."""
        for name, unit in UNITS.items():
            used = sum(amounts[name] for holder, amounts in self._allocated.items() if holder != uid)
            capacity = unit(self.capacity[name])
            if requested[name] and requested[name] > capacity - used:
                numbers = f"requested: {requested[name]}, used: {used}, capacity: {capacity}"
                return f"Node didn't have enough resource: {name}, {numbers}"
        return None

    def wait(self, pod: Object, requested: Mapping[str, int], retry: Callable[[], None]) -> None:
        """Evaluate a resize again once there is capacity."""
        uid = pod["metadata"]["uid"]
        granted = self._allocated.get(uid, {})
        grows = any(requested[name] > granted.get(name, 0) for name in UNITS)
        self._turns += 1
        turn = self._waiting[uid].turn if uid in self._waiting else self._turns
        self._waiting[uid] = _Waiting(pod, retry, grows, turn)

    def retry(self) -> None:
        for waiter in _in_order(self._waiting.values()):
            waiter.retry()


def _in_order(waiting: Iterable[_Waiting]) -> list[_Waiting]:
    return sorted(waiting, key=lambda waiter: waiter.rank)
