"""Statuses of pods, as a kubelet reports them; ``python -m tests.kubelet.statuses FILE`` writes them.

`make test-kubelet` records those of Kubernetes' own kubelet with it; tests/node/test_statuses_alike.py
compares those of local nodes. Times, ids, addresses and what one version of containerd says are left out.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RECORDED = HERE / "statuses.json"
Object = dict[str, Any]
# Of a container: what every kubelet says in the same way.
KEPT = ("name", "ready", "started", "state", "lastState")
LOOPING = ("restarts", "init-restarts", "hook-fails")  # what they say depends on when one looks


def pods(node: str) -> dict[str, tuple[Object, str]]:
    """Return the pods by name, each with the condition of `kubectl wait` until which it is looked at."""
    text = (HERE / "statuses.yaml").read_text(encoding="utf-8").replace("{node}", node)
    return {
        name: (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": case["spec"]},
            case["until"],
        )
        for name, case in yaml.safe_load(text).items()
    }


def comparable(pod: Object) -> Object:
    """Reduce a pod's status to what does not differ from run to run."""
    status = pod["status"]
    facts: Object = {key: status.get(key) for key in ("phase", "reason", "message", "qosClass")}
    facts["message"] = _plain(facts["message"])
    facts["conditions"] = {
        condition["type"]: [
            condition["status"],
            condition.get("reason"),
            # ContainersNotReady names the containers; others are words of the node.
            condition.get("message") if condition["type"] != "PodScheduled" else None,
        ]
        for condition in status.get("conditions", [])
    }
    for kind in ("initContainerStatuses", "containerStatuses"):
        facts[kind] = [_container(container, pod) for container in status.get(kind, [])]
    return facts


def _container(status: Object, pod: Object) -> Object:
    status_facts = {key: status.get(key) for key in KEPT}
    looping = pod["metadata"]["name"] in LOOPING
    for key in ("state", "lastState"):
        status_facts[key] = {name: _facts(name, facts) for name, facts in (status_facts[key] or {}).items()}
    if looping:
        status_facts = {
            "name": status_facts["name"],
            "ready": status_facts["ready"],
            "lastState": status_facts["lastState"],
        }
    return status_facts


def _facts(name: str, facts: Object) -> Object:
    if name == "running":
        return {}
    selected = {key: facts[key] for key in ("reason", "exitCode", "signal") if key in facts}
    # What an engine says of a command or an image is its own.
    if facts.get("reason") in ("Error", "CreateContainerConfigError") and facts.get("message"):
        selected["message"] = _plain(facts["message"])
    return selected


def _plain(message: str | None) -> str | None:
    """Leave out names with random parts, and figures of the node."""
    message = re.sub(r"\([^()]*\([0-9a-f-]{36}\)\)|[0-9a-f]{8}-[0-9a-f-]{27}", "…", message or "")
    # What is used depends on which of the pods came first.
    return re.sub(r"\d{3,}|(?<=used: )\d+", "N", message) or None


def look(kubectl: Callable[..., str]) -> dict[str, Object]:
    """Create the pods in a namespace of their own, wait for each, and return what is reported of it."""
    node = json.loads(kubectl("get", "nodes", "--output=json"))["items"][0]["metadata"]["name"]
    kubectl("create", "namespace", "statuses")
    statuses = {}
    try:
        cases = pods(node)
        items = {"apiVersion": "v1", "kind": "List", "items": [pod for pod, _ in cases.values()]}
        kubectl("apply", "--namespace=statuses", "--filename=-", stdin=items)
        for name, (_, until) in cases.items():
            wait = f"--for=jsonpath={until}"
            words = (f"pod/{name}", wait, "--timeout=120s", "--output=json")
            pod = json.loads(kubectl("wait", "--namespace=statuses", *words))
            statuses[name] = comparable(pod)
    finally:
        kubectl("delete", "namespace", "statuses", "--wait=false")
    return statuses


def _kubectl(*arguments: str, stdin: Any = None) -> str:
    return subprocess.run(
        ["kubectl", *arguments], input=json.dumps(stdin), text=True, check=True, stdout=subprocess.PIPE
    ).stdout


if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else RECORDED
    path.write_text(json.dumps(look(_kubectl), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print(f"{path}: written")
