"""Objects of the workload controllers for tests: manifests, and waiting for them with kubectl."""

import json
import secrets
from typing import Any

from .clusters import PATIENCE, RunningCluster

FOREVER = "trap 'exit 0' TERM; sleep infinity & wait"


def named(word: str) -> str:
    """Return a name that nothing in the cluster has yet."""
    return f"{word}-{secrets.token_hex(3)}"


def job(name: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return the manifest of a Job of pods like this one."""
    spec |= {"template": {"spec": pod["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def apply(cluster: RunningCluster, manifest: dict[str, Any]) -> str:
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    return manifest["metadata"]["name"]


def claim(cluster: RunningCluster, name: str) -> None:
    """Make a small claim that pods of all nodes may write to."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    body = {"metadata": {"name": name}, "spec": spec}
    cluster.core.create_namespaced_persistent_volume_claim("default", body)


def pods_of(cluster: RunningCluster, name: str) -> list[dict[str, Any]]:
    """Return the pods labelled ``app=name`` that are not being deleted, by name."""
    items = json.loads(cluster.kubectl("get", "pods", "-l", f"app={name}", "-o", "json"))["items"]
    alive = [item for item in items if "deletionTimestamp" not in item["metadata"]]
    return sorted(alive, key=lambda item: item["metadata"]["name"])


def names(pods: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in pods]


def delete(cluster: RunningCluster, *things: str) -> None:
    cluster.kubectl("delete", *things, "--ignore-not-found", "--cascade=foreground", f"--timeout={PATIENCE}s")
