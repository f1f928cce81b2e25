"""A cluster that nobody uses sleeps: no program of it runs, and a connection wakes it."""

import time

import psutil
import pytest
from soak.footprint import Footprint

from .clusters import RunningCluster, command_line, eventually, localkube, state_home

IDLE = 2  # seconds
ENVIRONMENT = {"TRAINYARD_SLEEP_SECONDS": str(IDLE)}


@pytest.fixture(scope="module")
def home(request):
    with state_home(request.config.cache.mkdir("sleep")) as place:
        try:
            yield place
        finally:
            localkube("delete", "lab", home=place)


@pytest.fixture(scope="module")
def cluster(home):
    created = localkube("create", "lab", "--nodes", "2", "--no-warm", home=home, env=ENVIRONMENT)
    cluster = RunningCluster(home, created)
    cluster.close()  # a client that keeps its connection would keep the cluster awake
    return cluster


def sleeps(cluster):
    return (cluster.root / "asleep").exists()


def wait_until_asleep(cluster):
    eventually(lambda: sleeps(cluster), expected=True)
    eventually(lambda: {stopped(process) for process in programs(cluster)}, expected={True})


def programs(cluster):
    words = ("etcd", "kube-apiserver", "kube-controller-manager", "localkube.kubelet")
    return [process for process in cluster.processes() if set(words) & set(command_line(process))]


def stopped(process):
    return process.status() == psutil.STATUS_STOPPED


def stays_awake(cluster, *, seconds=2 * IDLE + 1):
    """Look for so long whether it falls asleep."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not sleeps(cluster):
        time.sleep(0.1)
    return not sleeps(cluster)


def transitions(cluster):
    path = "{.items[*].status.conditions[?(@.type=='Ready')].lastTransitionTime}"
    return cluster.kubectl("get", "nodes", "-o", f"jsonpath={path}")


def test_it_stops_and_goes_on_and_no_node_is_lost_meanwhile(cluster):
    wait_until_asleep(cluster)
    before = cluster.kubectl("get", "--raw", "/readyz"), transitions(cluster)
    wait_until_asleep(cluster)
    assert len(programs(cluster)) == 4
    status = localkube("status", "lab", home=cluster.home)
    assert (status["state"], "asleep" in status["reason"]) == ("running", True)
    assert "asleep" in localkube("list", home=cluster.home)[0]["reason"]
    time.sleep(17)  # longer than the node controller waits for a silent node
    assert sleeps(cluster), "to be looked at does not wake it"

    assert cluster.kubectl("run", "first", "--image=busybox", "--restart=Never", "--", "true")
    assert cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/first", "--timeout=60s")
    assert (cluster.kubectl("get", "--raw", "/readyz"), transitions(cluster)) == before
    assert "KubeletSlow" not in cluster.kubectl("get", "events", "-A")


def test_a_pod_that_runs_and_a_watch_keep_it_awake(cluster):
    cluster.kubectl("run", "steady", "--image=busybox", "--", "sleep", "600")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/steady", "--timeout=60s")
    assert stays_awake(cluster)
    cluster.kubectl("delete", "pod", "steady", "--now")
    wait_until_asleep(cluster)
    with psutil.Popen(cluster.kubectl_command("get", "pods", "--watch"), stdout=-3) as watching:
        time.sleep(1)
        assert stays_awake(cluster)
        watching.terminate()
    wait_until_asleep(cluster)


def test_a_sleeping_cluster_survives_the_loss_of_its_supervisor(cluster):
    wait_until_asleep(cluster)
    traces = Footprint.of(cluster.root)
    psutil.Process(cluster.status["processes"]["supervisor"]["pid"]).kill()
    assert psutil.wait_procs(list(traces.processes), timeout=30)[1] == []
    assert localkube("status", "lab", home=cluster.home)["state"] == "stopped"
    again = RunningCluster(cluster.home, localkube("start", "lab", home=cluster.home, env=ENVIRONMENT))
    again.close()
    wait_until_asleep(again)
    traces = Footprint.of(again.root)
    localkube("delete", "lab", home=cluster.home)
    assert traces.leftovers() == []
