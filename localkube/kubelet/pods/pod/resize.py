"""In-place resize of a pod's containers: the node allocates what fits, then the running containers get it.

What a container was allocated and what it has is in its status, so that the next kubelet goes on from there.
Pods and containers keep to what is allocated, whatever their specification wants meanwhile. Pure.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from localkube.kubelet.pods.pod.actions import Action, Allocate, Change, EmitEvent, ReportStatus
from localkube.kubelet.pods.pod.record import PodRecord
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.allocation import requests
from localkube.kubelet.status.conditions import RESIZES
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, STATUSES, containers
from localkube.kubelet.status.restart_policy import is_sidecar

Object = Mapping[str, Any]
PENDING, IN_PROGRESS = RESIZES
ERROR = "Error"


def reported(pod: Object) -> tuple[dict[str, Object], dict[str, Object]]:
    """What a former kubelet has reported: the containers' resources, and conditions by type."""
    before = (pod.get("status") or {}).get("conditions") or []
    conditions = {condition["type"]: condition for condition in before if condition["type"] in RESIZES}
    return _desired(pod) | dict(_reported(pod)), conditions


def allocated_pod(desired: Object, allocated: Mapping[str, Object]) -> Object:
    """The desired pod, with the resources that its containers were allocated."""
    names = set(_differing(desired, allocated))
    if not names:
        return desired
    spec = dict(desired["spec"])
    for kind in STATUSES.keys() & spec.keys():
        spec[kind] = [
            container | {"resources": allocated[container["name"]]}
            if container["name"] in names
            else container
            for container in spec[kind]
        ]
    return {**desired, "spec": spec}


def evaluate(record: PodRecord, shortage: str | None) -> Change:
    """Allocate the desired resources, if the node has room for them."""
    pod, before, actions = record.desired, record.resizes, list[Action]()
    if not _differing(pod, record.allocated):
        record = replace(record, resizes={kind: before[kind] for kind in before if kind != PENDING})
    elif not record.stopping:
        requested, generation = requests(pod), pod["metadata"].get("generation")
        if shortage:
            pending = _condition(PENDING, "Deferred", shortage, generation)
            record = replace(record, resizes={**before, PENDING: pending})
            if before.get(PENDING, {}).get("observedGeneration") != generation:
                actions.append(_event(pod, "ResizeDeferred", "Pod resize Deferred", generation, shortage))
            actions.append(Allocate(requested, is_deferred=True))
        else:
            started = {IN_PROGRESS: _condition(IN_PROGRESS, "", "", generation)}
            record = replace(record, allocated={**record.allocated, **_desired(pod)}, resizes=started)
            actions += [_event(pod, "ResizeStarted", "Pod resize started", generation), Allocate(requested)]
    return record, actions if record.resizes == before else [*actions, ReportStatus()]


def failed(record: PodRecord, message: str) -> Change:
    """A container cannot have less than it uses; it is tried again."""
    condition = record.resizes[IN_PROGRESS]
    generation, actions = condition.get("observedGeneration"), list[Action]()
    if condition.get("reason") != ERROR:
        actions.append(_event(record.pod, "ResizeError", "Pod resize error", generation, message))
    condition = _condition(IN_PROGRESS, ERROR, message, generation)
    return replace(record, resizes={**record.resizes, IN_PROGRESS: condition}), [*actions, ReportStatus()]


def tried(record: PodRecord, *, done: bool) -> Change:
    """The containers have what they were allocated, or one is started again for it."""
    if not done:
        return record, [ReportStatus()]
    generation = record.resizes[IN_PROGRESS].get("observedGeneration")
    event = _event(record.pod, "ResizeCompleted", "Pod resize completed", generation)
    rest = {kind: condition for kind, condition in record.resizes.items() if kind != IN_PROGRESS}
    return replace(record, resizes=rest), [event, ReportStatus()]


def _event(pod: Object, reason: str, title: str, generation: int | None, error: str = "") -> EmitEvent:
    summary: dict[str, Any] = {}
    for kind, container in containers(pod):
        if kind != EPHEMERAL:
            resources = container.get("resources") or {}
            summary.setdefault(kind, []).append({"name": container["name"], "resources": resources})
    summary |= {"generation": generation} | ({"error": error} if error else {})
    text = json.dumps(summary, separators=(",", ":"))
    return EmitEvent(reason, f"{title}: {text}", warning=bool(error))


def _desired(pod: Object) -> dict[str, Object]:
    return {name: container.get("resources") or {} for name, container in _resizable(pod)}


def _differing(desired: Object, allocated: Mapping[str, Object]) -> list[str]:
    """List the containers that want other resources than they were allocated."""
    return [name for name, resources in _desired(desired).items() if changed(allocated[name], resources)]


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
