"""Run one command in a pod, as `kubectl run` does, and wait for the state that is expected."""

import json
import time

# What the Pod Security level "restricted" requires: `kubectl run` alone runs as the image's user.
RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def pod_state(pod):
    """Read the phase of a pod, or why its container waits."""
    statuses = pod["status"].get("containerStatuses", [])
    states = [status["state"] for status in statuses]
    reasons = [state["waiting"].get("reason") for state in states if "waiting" in state]
    return reasons[0] if reasons else pod["status"]["phase"]


def run_pod(cluster, name, command="", *, image, ends=("Succeeded",), volume=None, seconds=600):
    """Run a command; `volume` is mounted at its name, and the pod's state becomes one of `ends`."""
    container = {"name": name, "securityContext": RIGHTS}
    spec = {"securityContext": USER, "containers": [container]}
    if volume:
        container["volumeMounts"] = [{"name": volume["name"], "mountPath": f"/{volume['name']}"}]
        spec["volumes"] = [volume]
    options = "--restart=Never --labels=trainyard/notebook=03 --override-type=strategic"
    overrides = json.dumps({"spec": spec})
    cluster.kubectl(f"run {name} --image={image} {options} --overrides='{overrides}' {command}")
    deadline = time.monotonic() + seconds
    while (state := pod_state(cluster.kube.get("Pod", name))) not in ends:
        if time.monotonic() > deadline:
            raise TimeoutError(f"pod {name} is {state} after {seconds} s, not {' or '.join(ends)}")
        time.sleep(0.1)
    return state
