"""Ephemeral containers: ``kubectl debug`` adds them to a pod that runs."""

import subprocess

import pytest

from .clusters import eventually, pod
from .terminals import Terminal


def status(pod, name="debugger"):
    """Return an ephemeral container's status; an empty one when nothing is reported yet."""
    statuses = pod["status"].get("ephemeralContainerStatuses") or []
    return next((status for status in statuses if status["name"] == name), {"state": {}})


def debug(cluster, name, *words, script):
    """Add a container to a pod, without attaching to it."""
    cluster.kubectl(
        "debug", name, "--image=busybox", "--container=debugger", *words, "--", "sh", "-c", script
    )


def ended(pods, name):
    """Wait for the end of the debugger and return it."""
    pod = pods.until(name, lambda pod: "terminated" in status(pod)["state"])
    return status(pod)["state"]["terminated"]


@pytest.fixture
def target(pods):
    """The name of a pod that is debugged."""
    return pods.running(pod("echo ready; exec sleep 600"))["metadata"]["name"]


def test_a_container_is_added_runs_once_and_has_a_log(cluster, pods, target):
    debug(cluster, target, script="echo looked; exit 3")
    assert ended(pods, target)["exitCode"] == 3
    assert pods.logs(target, container="debugger") == "looked\n"
    pods.wait_for_event(target, "Started", "Container debugger started")
    now = pods.until(target, bool)
    assert now["status"]["phase"] == "Running"
    assert (status(now)["restartCount"], status(now)["ready"]) == (0, False)


def test_a_debugger_shares_the_pods_network_and_not_its_processes(cluster, pods, target):
    address = pods.until(target, lambda pod: pod["status"].get("podIP"))["status"]["podIP"]
    debug(cluster, target, script="hostname -i; pgrep -x sleep || echo none")
    ended(pods, target)
    assert pods.logs(target, container="debugger").split() == [address, "none"]


@pytest.mark.namespaces
def test_with_a_target_a_debugger_sees_and_signals_its_processes(cluster, pods):
    name = pods.running(pod("trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.1; done"))
    name = name["metadata"]["name"]
    debug(cluster, name, "--target=main", script="grep -c caught /proc/1/cmdline; kill -USR1 1; sleep 600")
    done = pods.until(name, lambda pod: pod["status"]["phase"] == "Failed")
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    # The kernel ends all processes of a namespace with its first one.
    assert ended(pods, name)["exitCode"] == 137
    assert pods.logs(name, container="debugger") == "1\n"


def test_a_debugger_does_not_keep_its_pod_alive(cluster, pods):
    name = pods.running(pod("until test -e /data/end; do sleep 0.1; done", **shared()))["metadata"]["name"]
    debug(cluster, name, script="sleep 600")
    pods.until(name, lambda pod: "running" in status(pod)["state"])
    cluster.kubectl("exec", name, "-c", "main", "--", "touch", "/data/end")
    pod_status = pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert "terminated" in status(pod_status)["state"]


def shared():
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return {"volumes": [{"name": "data", "emptyDir": {}}], "main": mounts}


def test_a_debugger_on_a_terminal_is_talked_to(cluster, pods, target):
    words = ("debug", "-it", target, "--image=busybox", "--container=debugger", "--", "sh")
    with Terminal(cluster.kubectl_command(*words)) as terminal:
        terminal.type("echo the si''ze is; stty size\r")
        terminal.until(r"the size is\r\n\d+ \d+\r\n")
        terminal.type("exit 7\r")
        terminal.wait()
    assert ended(pods, target)["exitCode"] == 7


def test_a_debugger_starts_while_an_init_container_still_runs(cluster, pods):
    init = {"name": "first", "image": "busybox", "command": ["sleep", "600"]}
    name = pods.create(pod("true", initContainers=[init]))
    pods.until(name, lambda pod: "running" in state_of_init(pod))
    debug(cluster, name, script="echo looked")
    assert ended(pods, name)["exitCode"] == 0


def state_of_init(pod):
    statuses = pod["status"].get("initContainerStatuses") or [{"state": {}}]
    return statuses[0]["state"]


def test_a_debugger_survives_the_kubelet_and_is_not_run_again(cluster, pods, target):
    debug(cluster, target, script="trap 'exit 0' TERM; echo once; while :; do sleep 0.1; done")
    pods.until(target, lambda pod: "running" in status(pod)["state"])
    cluster.process("localkube.kubelet").kill()
    command = cluster.kubectl_command("exec", target, "-c", "debugger", "--", "true")
    eventually(lambda: subprocess.run(command, capture_output=True, check=False).returncode, expected=0)
    cluster.kubectl("exec", target, "-c", "debugger", "--", "kill", "1")
    assert ended(pods, target)["exitCode"] == 0
    assert pods.logs(target, container="debugger") == "once\n"
