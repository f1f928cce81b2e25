"""17: request a partition of a GPU with enough memory. The scheduler is offered one device of each kind."""

import copy
import re
from typing import Any

from kitlib.clusters import Cluster
from kitlib.k8s import names
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from trainyard_kit.exercises.checklist import Exercise, NotYet, field
from trainyard_kit.exercises.manifests import add_manifest_checks, check_label

DRIVER, MIN_MEMORY, SECONDS = "gpu.nvidia.com", 40 * 2**30, 60.0
STUB = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "mine", "labels": {"trainyard/notebook": "17"}},
    "spec": {"spec": {"devices": {"requests": [{"name": "part", "exactly": {"deviceClassName": "TODO"}}]}}},
}
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER = {"name": "main", "image": "busybox", "command": ["true"], "securityContext": SECURE}
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "restartPolicy": "Never",
        "securityContext": USER,
        "containers": [CONTAINER],
        "tolerations": [{"operator": "Exists"}],  # nodes with GPUs are tainted at clouds
    },
}
EXERCISE = Exercise("template", "cluster", stub=STUB)
add_manifest_checks(EXERCISE, kind="ResourceClaimTemplate", version="resource.k8s.io/v1")


@EXERCISE.check("it requests one device", essential=True)
def one_device(template: Object, cluster: Cluster) -> None:
    requests = field(template, "spec.spec.devices.requests")
    if not isinstance(requests, list) or len(requests) != 1:
        raise NotYet("spec.spec.devices.requests must have exactly one request")
    for choice in _choices(requests[0]):
        if choice.get("allocationMode", "ExactCount") != "ExactCount" or (choice.get("count") or 1) != 1:
            raise NotYet("it requests several devices: leave out allocationMode and count")


@EXERCISE.check("it matches partitions of a GPU with 40 GiB or more, and nothing else")
def matching_devices(template: Object, cluster: Cluster) -> None:
    for device in _device_kinds(cluster):
        profile, memory = (
            _value(device, "profile"),
            int(parse_quantity(device["capacity"]["memory"]["value"])),
        )
        whole, shown = not profile or profile.startswith("7g"), profile or "a whole GPU"
        refusal = _refusal(template, cluster, device)
        if fault := re.search("(?s)CEL.*|device class .* does not exist", refusal):
            raise NotYet(f"offered {shown}, the scheduler reports: {fault[0]}")
        if refusal and not whole and memory >= MIN_MEMORY:
            raise NotYet(f"it does not match {shown}, which has {memory >> 30} GiB")
        if not refusal and (whole or memory < MIN_MEMORY):
            reason = "is a whole GPU" if whole else f"has only {memory >> 30} GiB"
            raise NotYet(f"it matches {shown}, which {reason}")


@EXERCISE.check("the notebook's clean-up cell finds it")
def cleanup_label(template: Object, cluster: Cluster) -> None:
    check_label(template, "17")


def _choices(request: Object) -> list[Object]:
    return request.get("firstAvailable") or [request.get("exactly") or {}]


def _value(device: Object, name: str) -> str:
    return next(iter((device["attributes"].get(name) or {"string": ""}).values()))


def _device_kinds(cluster: Cluster) -> list[Object]:
    """List one device of each kind: a whole GPU, and a partition of each profile."""
    claims = cluster.kube.get_all("ResourceClaim")
    if used := sorted(
        claim["metadata"]["name"] for claim in claims if "allocation" in claim.get("status", {})
    ):
        raise NotYet(f"these claims hold devices: delete their pods, then check again: {', '.join(used)}")
    specs = [item["spec"] for item in cluster.kube.get_all("ResourceSlice")]
    devices = [device for spec in specs if spec["driver"] == DRIVER for device in spec.get("devices") or ()]
    return list({_value(device, "profile"): device for device in devices}.values())


def _refusal(template: Object, cluster: Cluster, device: Object) -> str:
    """Offer a single device to a pod with the request; return the scheduler's reason if it does not fit."""
    spec = copy.deepcopy(template["spec"]["spec"])
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].uuid == "{_value(device, "uuid")}"'}}
    for choice in _choices(spec["devices"]["requests"][0]):
        choice["selectors"] = [selector, *(choice.get("selectors") or ())]
    name = names.unique("exercise")
    metadata = {"name": name, "labels": {"trainyard/notebook": "17"}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    pod = POD | {
        "metadata": metadata,
        "spec": POD["spec"] | {"resourceClaims": [{"name": "part", "resourceClaimName": name}]},
    }
    selected = (WatchSpec(kind, fields=f"metadata.name={name}") for kind in ("Pod", "ResourceClaim"))
    states = watch_objects(cluster.kube, *selected)
    limits: dict[str, Any] = {"timeout": SECONDS, "about": f"pod/{name}", "resume": "kit.check again"}
    try:
        cluster.kube.create(claim), cluster.kube.create(pod)
        state = wait(states, until=lambda state: bool(_decision(state)), what="the scheduler", **limits)
    finally:
        cluster.kube.delete("Pod", name, grace=0)
        cluster.kube.delete("ResourceClaim", name)
    wait(states, until=lambda state: not any(state.values()), what="the release of the device", **limits)
    return "" if _decision(state)["status"] == "True" else _decision(state)["message"]


def _decision(state: Snapshot) -> Object:
    """Get the pod's PodScheduled condition; empty if there is none yet."""
    conditions = (item for pod in state["Pod"].values() for item in pod["status"].get("conditions") or ())
    return next((item for item in conditions if item["type"] == "PodScheduled"), {})
