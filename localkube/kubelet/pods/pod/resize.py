"""In-place resize of a pod's containers: the node allocates what fits, then the running containers get it.

A container's allocated and actual resources are in its status, from which the next kubelet continues. Pods
and containers keep their allocation until the node has room for what their specification requests. Pure.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.pods.pod.actions import Action, Allocate, Change, EmitEvent, ReportStatus
from localkube.kubelet.pods.pod.record import PodRecord
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.allocation import requests
from localkube.kubelet.status.conditions import RESIZES
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, STATUSES, containers
from localkube.kubelet.status.restart_policy import is_sidecar

PENDING, IN_PROGRESS = RESIZES
ERROR = "Error"


def reported(pod: Object) -> tuple[dict[str, Object], dict[str, Object]]:
    """Read what an earlier kubelet has reported: the containers' resources, and the conditions by type."""
    before = (pod.get("status") or {}).get("conditions") or []
    conditions = {condition["type"]: condition for condition in before if condition["type"] in RESIZES}
    return _desired(pod) | dict(_reported(pod)), conditions


def allocated_pod(desired: Object, allocated: Mapping[str, Object]) -> Object:
    """Build the desired pod with the allocated resources of its containers."""
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
    """Record that a container uses more than its new limit; the resize is retried."""
    condition = record.resizes[IN_PROGRESS]
    generation, actions = condition.get("observedGeneration"), list[Action]()
    if condition.get("reason") != ERROR:
        actions.append(_event(record.pod, "ResizeError", "Pod resize error", generation, message))
    condition = _condition(IN_PROGRESS, ERROR, message, generation)
    return replace(record, resizes={**record.resizes, IN_PROGRESS: condition}), [*actions, ReportStatus()]


def tried(record: PodRecord, *, done: bool) -> Change:
    """Record that the containers have their allocated resources, or that one restarts to get them."""
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
    """List the containers whose requested resources differ from the allocated ones."""
    return [name for name, resources in _desired(desired).items() if differences(allocated[name], resources)]


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
    """Yield the resources of each container that an earlier kubelet has reported."""
    for field in STATUSES.values():
        for status in (pod.get("status") or {}).get(field) or []:
            if status.get("resources") is not None:
                yield status["name"], status["resources"]


def differences(before: Object, after: Object) -> set[str]:
    """List the resources whose requests or limits differ.

    Example:
        >>> differences({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "2", "memory": "1Gi"}})
        {'cpu'}
    """
    old, new = _values(before), _values(after)
    return {key[1] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
