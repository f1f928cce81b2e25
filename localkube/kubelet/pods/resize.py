"""In-place resize of a pod's containers: the node allocates what fits, then the running containers get it.

What a container was allocated and what it has is in its status, so that the next kubelet goes on from there.
Pods and containers keep to what is allocated, whatever their specification wants meanwhile.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from localkube.kubelet.pods.pod_state import PodState
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.allocation import Allocations, requests
from localkube.kubelet.resources.limits import ResizeError
from localkube.kubelet.status.conditions import RESIZES
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, STATUSES, containers
from localkube.kubelet.status.pod_status import TERMINAL
from localkube.kubelet.status.restart_policy import is_sidecar

Object = Mapping[str, Any]
PENDING, IN_PROGRESS = RESIZES
ERROR = "Error"
RETRY_SECONDS = 10.0


class PodResize:
    """The resources of one pod.

    Attributes:
        requested: The newest object.
        conditions: Of the pod, by type: what is pending or in progress.
    """

    def __init__(self, worker: PodState, pod: Object) -> None:
        self.wanted = pod
        self._worker = worker
        self._allocations: Allocations = worker.pool.allocations
        self._allocated = {name: container.get("resources") or {} for name, container in _resizable(pod)}
        self._allocated |= _reported(pod)
        self._task: asyncio.Task[None] | None = None
        before = (pod.get("status") or {}).get("conditions") or []
        self.conditions = {
            condition["type"]: condition for condition in before if condition["type"] in RESIZES
        }

    def start(self) -> None:
        """Allocate what the pod has, and what it wants by now if there is room."""
        if (self.wanted.get("status") or {}).get("phase") not in TERMINAL:
            self._allocations.allocate(self._worker.uid, requests(self.pod))

    @property
    def pod(self) -> Object:
        """The pod as it is wanted, with the resources that its containers were allocated."""
        changed = {name for name, container in _resizable(self.wanted) if not self._agrees(name, container)}
        if not changed:
            return self.wanted
        spec = dict(self.wanted["spec"])
        for kind in STATUSES.keys() & spec.keys():
            spec[kind] = [
                container | {"resources": self._allocated[container["name"]]}
                if container["name"] in changed
                else container
                for container in spec[kind]
            ]
        return {**self.wanted, "spec": spec}

    def _agrees(self, name: str, container: Object) -> bool:
        return not changed(self._allocated[name], container.get("resources") or {})

    def evaluate(self) -> bool:
        """Allocate what is wanted, if the node has room for it; True when the conditions change."""
        worker, pod, before = self._worker, self.wanted, dict(self.conditions)
        if all(self._agrees(name, container) for name, container in _resizable(pod)):
            self.conditions.pop(PENDING, None)
        elif not worker.stopping.is_set():
            requested, generation = requests(pod), pod["metadata"].get("generation")
            if shortage := self._allocations.shortage(worker.uid, requested):
                self._defer(shortage, requested, generation)
            else:
                self._allocated |= {
                    name: container.get("resources") or {} for name, container in _resizable(pod)
                }
                self.conditions = {IN_PROGRESS: _condition(IN_PROGRESS, "", "", generation)}
                self._event("ResizeStarted", "Pod resize started", generation)
                self._allocations.allocate(worker.uid, requested)
        return before != self.conditions

    def _defer(self, shortage: str, requested: dict[str, int], generation: int | None) -> None:
        known = self.conditions.get(PENDING, {})
        self.conditions[PENDING] = _condition(PENDING, "Deferred", shortage, generation)
        if known.get("observedGeneration") != generation:
            self._event("ResizeDeferred", "Pod resize Deferred", generation, error=shortage)
        self._allocations.wait(self.wanted, requested, self._worker.sync_containers)

    def actuate(self) -> None:
        """Give its containers what they were allocated, now or as soon as they allow it."""
        if IN_PROGRESS in self.conditions and (self._task is None or self._task.done()):
            self._task = self._worker.in_background(self._actuate())

    async def _actuate(self) -> None:
        worker = self._worker
        while IN_PROGRESS in self.conditions and not worker.stopping.is_set():
            condition = self.conditions[IN_PROGRESS]
            generation = condition.get("observedGeneration")
            try:
                done = [container.resize() for container in list(worker.containers.values())]
            except ResizeError as error:
                if condition.get("reason") != ERROR:
                    self._event("ResizeError", "Pod resize error", generation, error=str(error))
                self.conditions[IN_PROGRESS] = _condition(IN_PROGRESS, ERROR, str(error), generation)
                worker.report()
                await worker.pause(RETRY_SECONDS)
                continue
            if all(done):
                del self.conditions[IN_PROGRESS]
                self._event("ResizeCompleted", "Pod resize completed", generation)
            # Otherwise one is started again, and calls for the rest when it runs.
            worker.report()
            return

    def _event(self, reason: str, title: str, generation: int | None, *, error: str = "") -> None:
        summary: dict[str, Any] = {}
        for kind, container in containers(self.wanted if reason == "ResizeDeferred" else self.pod):
            if kind != EPHEMERAL:
                resources = container.get("resources") or {}
                summary.setdefault(kind, []).append({"name": container["name"], "resources": resources})
        summary |= {"generation": generation} | ({"error": error} if error else {})
        text = json.dumps(summary, separators=(",", ":"))
        self._worker.event(reason, f"{title}: {text}", warning=bool(error))


def _condition(kind: str, reason: str, message: str, generation: int | None) -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "observedGeneration": generation}


def _values(resources: Object) -> dict[tuple[str, str], Any]:
    kinds = ((kind, resources.get(kind) or {}) for kind in ("requests", "limits"))
    return {(kind, name): parse(text) for kind, amounts in kinds for name, text in amounts.items()}


def _resizable(pod: Object) -> Iterator[tuple[str, Object]]:
    for kind, container in containers(pod):
        if kind != EPHEMERAL and (kind != INIT or is_sidecar(container)):
            yield container["name"], container


def _reported(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yield the resources that a former kubelet has reported of each container."""
    for field in STATUSES.values():
        for status in (pod.get("status") or {}).get(field) or []:
            if status.get("resources") is not None:
                yield status["name"], status["resources"]


def changed(before: Object, after: Object) -> set[str]:
    """List the resources of which two sets of requests and limits differ.

    Example:
        >>> changed({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "2", "memory": "1Gi"}})
        {'cpu'}
    """
    old, new = _values(before), _values(after)
    return {key[1] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
