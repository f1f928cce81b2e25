"""What a cluster has used so far, and what of it is still there: minutes, processes, cloud resources."""

import json
from datetime import UTC, datetime

import psutil

from kitlib.config import state_folder


def minutes(cluster):
    """Add up the minutes of all nodes, and of all listed pods; and return the cluster's own."""

    def items(kind):
        return json.loads(cluster.kubectl(f"get {kind} -o json"))["items"]

    nodes = [_minutes(node["metadata"]["creationTimestamp"]) for node in items("nodes")]
    states = [state["state"] for pod in items("pods") for state in pod["status"].get("containerStatuses", [])]
    runs = [state.get("terminated") or state.get("running") or {} for state in states]
    pods = [_minutes(run["startedAt"], run.get("finishedAt")) for run in runs if "startedAt" in run]
    return {"nodes existed": sum(nodes), "pods ran": sum(pods)}, max(nodes)


def _minutes(begin, end=None):
    last = datetime.fromisoformat(end) if end else datetime.now(UTC)
    return (last - datetime.fromisoformat(begin)).total_seconds() / 60


def folder(name):
    """Return the folder of a local cluster: database, certificates, logs, kubeconfig."""
    return state_folder() / "clusters" / name


def processes(name):
    """List the processes of a local cluster: those that have its folder among their arguments."""
    processes = psutil.process_iter(["name", "cmdline"])
    commands = [(process.info["name"], " ".join(process.info["cmdline"] or [])) for process in processes]
    return sorted(program for program, command in commands if f"{folder(name)}/" in command)


def rented(cluster):
    """List the resources of a cluster at a cloud, found by the kit's tags."""
    return cluster.resources() if hasattr(cluster, "resources") else []
