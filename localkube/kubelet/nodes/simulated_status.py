"""What the API is told of simulated nodes and of their pods; who tells it is in ``simulator.py``. Pure."""

from typing import Any

from localkube.kubelet.nodes.node_pool import rfc3339

MARK = "trainyard/simulated"
PREFIX = "simulated-"
SIZE = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
OURS = ("Initialized", "ContainersReady", "Ready")


def node_object(index: int, *, version: str) -> dict[str, Any]:
    """Return a simulated Node, Ready."""
    name = f"{PREFIX}{index}"
    labels = {
        MARK: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "simulated",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": f"simulated-{'abc'[index % 3]}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": MARK, "value": "true", "effect": "NoSchedule"}]},
        "status": node_status(name, version=version),
    }


def node_status(name: str, *, version: str) -> dict[str, Any]:
    now = rfc3339()
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Simulated",
        "message": "nothing runs on this node, it is only said so",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "addresses": [{"type": "Hostname", "address": name}],
        "capacity": SIZE,
        "allocatable": SIZE,
        "conditions": [ready],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "simulated://0.1.0",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": name,
            "operatingSystem": "linux",
            "osImage": "simulated",
            "systemUUID": name,
        },
    }


def running(pod: dict[str, Any], address: str, now: str) -> dict[str, Any]:
    """Return the status of a pod whose containers all run."""
    spec = pod["spec"]
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    status: dict[str, Any] = {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            *_others(pod),
            *(
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("Initialized", "ContainersReady", "Ready")
            ),
        ],
        "containerStatuses": [
            _container(each, {"running": {"startedAt": now}}, ready=True) for each in spec["containers"]
        ],
    }
    if init := spec.get("initContainers"):
        status["initContainerStatuses"] = [_container(each, ended, ready=True) for each in init]
    return status


def succeeded(pod: dict[str, Any], began: str, now: str) -> dict[str, Any]:
    """Return the status of a pod whose containers have all ended well."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": now}}
    return {
        "phase": "Succeeded",
        "conditions": [
            *_others(pod),
            {"type": "Initialized", "status": "True", "lastTransitionTime": began},
            *(
                {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
                for kind in ("ContainersReady", "Ready")
            ),
        ],
        "containerStatuses": [_container(each, ended, ready=False) for each in pod["spec"]["containers"]],
    }


def _others(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions that are not the kubelet's: a merge patch replaces the list."""
    return [each for each in pod["status"].get("conditions") or [] if each["type"] not in OURS]


def _container(container: dict[str, Any], state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }
