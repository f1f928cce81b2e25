"""Clusters made, found again, ended and begun anew; nothing is left when they are deleted."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from soak.footprint import Footprint

from .clusters import (
    PATIENCE,
    REPOSITORY,
    Pods,
    Refused,
    RunningCluster,
    answer,
    localkube,
    on_node,
    pod,
    state_home,
)

SHAPE = ("--nodes", "1", "--no-warm")
BUSY = {"main": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, **on_node(0)}


@pytest.fixture
def home(request, tmp_path):
    """A home whose clusters are deleted after the test, whatever happens in it."""
    with state_home(request.config.cache.mkdir("lifecycle")) as place:
        try:
            yield place
        finally:
            for status in localkube("list", home=place):
                localkube("delete", status["name"], home=place)


def begin(home, *, name="lab"):
    """Start ``create`` and return the process."""
    command = [sys.executable, "-m", "localkube", "create", name, *SHAPE]
    environment = os.environ | {"XDG_STATE_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def occupy(cluster):
    """Give a cluster a running pod with a claim and a volume in memory, and return its traces."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    cluster.core.create_namespaced_persistent_volume_claim(
        "default", {"metadata": {"name": "data"}, "spec": claim}
    )
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    manifest = pod("touch /data/file; sleep 600 & sleep 600", name="busy", volumes=volumes, **BUSY)
    Pods(cluster).running(manifest)
    return Footprint.of(cluster.root)


def kill(cluster, name="supervisor"):
    """Kill a process of the record, and wait until it is gone."""
    process = psutil.Process(cluster.status["processes"][name]["pid"])
    process.kill()
    process.wait(PATIENCE)


def test_two_creates_at_once_and_a_third_later_give_one_cluster_and_deleting_leaves_nothing(home):
    first, second = (answer(*process.communicate()) for process in [begin(home), begin(home)])
    assert first["state"] == second["state"] == "running"
    assert first["processes"] == second["processes"]
    assert localkube("create", "lab", *SHAPE, home=home)["processes"] == first["processes"]

    with pytest.raises(Refused) as caught:
        localkube("create", "lab", "--nodes", "2", "--no-warm", home=home)
    assert "runs already, with nodes=1" in caught.value.error["what"]
    assert "delete it" in caught.value.error["fix"]

    cluster = RunningCluster(home, first)
    traces = occupy(cluster)
    assert len(traces.namespaces) > 4
    assert len(traces.processes) > 8
    cluster.close()
    assert localkube("delete", "lab", home=home) == {"name": "lab", "state": "absent", "existed": True}
    assert traces.leftovers() == []
    assert localkube("list", home=home) == []


def test_a_cluster_whose_supervisor_was_killed_begins_again_with_its_objects_and_can_be_deleted(home):
    cluster = RunningCluster(home, localkube("create", "lab", *SHAPE, home=home))
    cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    traces = occupy(cluster)
    kill(cluster)
    assert psutil.wait_procs(list(traces.processes), timeout=PATIENCE)[1] == []
    status = localkube("status", "lab", home=home)
    assert (status["state"], "its supervisor has ended" in status["reason"]) == ("stopped", True)
    cluster.close()

    again = RunningCluster(home, localkube("start", "lab", home=home))
    assert again.kubectl("get", "--raw", "/readyz") == "ok", "it calls itself ready when it is said to be"
    assert again.status["server"] == cluster.status["server"]
    assert again.core.read_namespaced_config_map("kept", "default").data == {"a": "b"}
    pods = Pods(again)
    lost = pods.until("busy", lambda pod: pod["status"]["phase"] == "Failed")
    ended = lost["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerStatusUnknown", 137)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    assert pods.output(pod("ls /data", volumes=[claim], **BUSY)) == "file\n"

    traces = Footprint.of(again.root)
    stopped = localkube("stop", "lab", home=home)
    assert (stopped["state"], "was stopped" in stopped["reason"]) == ("stopped", True)
    assert traces.processes and psutil.wait_procs(list(traces.processes), timeout=PATIENCE)[1] == []
    again.close()
    localkube("delete", "lab", home=home)
    assert traces.leftovers() == []


def test_a_running_cluster_whose_record_was_damaged_can_be_deleted_without_leaving_anything(home):
    cluster = RunningCluster(home, localkube("create", "lab", *SHAPE, home=home))
    traces = Footprint.of(cluster.root)
    cluster.close()
    (cluster.root / "cluster.json").write_text("not json")
    assert localkube("status", "lab", home=home)["state"] == "broken"
    localkube("delete", "lab", home=home)
    try:
        assert traces.leftovers() == []
    finally:
        for process in traces.processes:
            if process.is_running():
                process.send_signal(signal.SIGKILL)


def test_a_create_that_is_interrupted_leaves_nothing(home):
    creating = begin(home)
    for line in creating.stdout:
        if "starting the control plane" in json.loads(line).get("progress", ""):
            creating.send_signal(signal.SIGINT)
    creating.communicate(timeout=PATIENCE)
    assert creating.returncode != 0
    assert localkube("status", "lab", home=home)["state"] == "absent"
    assert not (home / "trainyard" / "clusters" / "lab").exists()
