"""A machine that is short of memory or disk: its nodes say so, and one pod after the other is evicted."""

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from .clusters import Pods, eventually, is_ready, on_node, pod, python, running_cluster, state_home

pytestmark = pytest.mark.slow
FILL = "dd if=/dev/zero of={place}/full bs=1M 2>/dev/null; exec sleep 600"


def conditions(cluster):
    """Return the conditions of pressure that hold on each node."""
    return [
        {row.type for row in node.status.conditions if row.status == "True" and row.type != "Ready"}
        for node in cluster.core.list_node().items
    ]


def taints(cluster):
    return {taint.key for node in cluster.core.list_node().items for taint in node.spec.taints or []}


@pytest.fixture(scope="module")
def short(request):
    """Pods of a cluster for which memory is short, whatever there is."""
    with (
        state_home(request.config.cache.mkdir("lab")) as home,
        running_cluster(
            "--nodes", "2", "--eviction-hard", "memory.available<100%", name="short", home=home
        ) as cluster,
        Pods(cluster) as short_pods,
    ):
        yield short_pods


HOLD = "held = bytearray(32 << 20); import time; time.sleep(600)"


def test_short_memory_evicts_what_is_above_its_requests_and_keeps_the_critical(short):
    cluster = short.cluster
    eventually(lambda: conditions(cluster), expected=[{"MemoryPressure"}] * 2)
    eventually(lambda: taints(cluster), expected={"node.kubernetes.io/memory-pressure"})
    tolerant = {"tolerations": [{"operator": "Exists"}]}
    manifest = pod("exec sleep 600", priorityClassName="system-node-critical", **tolerant)
    critical = cluster.core.create_namespaced_pod("kube-system", manifest).metadata.name
    small = short.running(pod("exec sleep 600", **tolerant))["metadata"]["name"]
    status = short.finish(pod(main=python(HOLD), **tolerant))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"].startswith("The node was low on resource: memory. Threshold quantity: ")
    assert "Container main was using " in status["message"]
    assert "kubelet has insufficient memory available" in cluster.kubectl("describe", "nodes")
    eventually(lambda: "EvictionThresholdMet" in cluster.kubectl("get", "events"))
    assert cluster.core.read_namespaced_pod(small, "default").status.phase == "Running"  # under a megabyte
    survivor = cluster.core.read_namespaced_pod(critical, "kube-system")
    assert survivor.status.phase in ("Pending", "Running")
    cluster.core.delete_namespaced_pod(critical, "kube-system", grace_period_seconds=0)


@contextmanager
def small_disk(size):
    """Yield a directory on a disk of its own, in memory."""
    with tempfile.TemporaryDirectory(prefix="disk-") as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "disk", path], check=True)
        try:
            yield Path(path)
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_pod_that_fills_the_disk_is_evicted_alone_and_the_cluster_goes_on():
    shape = ("--nodes", "2", "--eviction-hard", "nodefs.available<256Mi")
    shape = (*shape, "--eviction-pressure-transition-period", "5")
    with (
        small_disk("1500m") as disk,
        state_home(disk) as home,
        running_cluster(*shape, name="small", home=home) as cluster,
        Pods(cluster) as pods,
    ):
        beside = pods.running(pod("exec sleep 600", **on_node(0)))["metadata"]["name"]
        scratch = {"volumes": [{"name": "data", "emptyDir": {}}]}
        main = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        full = pods.create(pod(FILL.format(place="/data"), main=main, **scratch, **on_node(1)))
        eventually(lambda: conditions(cluster), expected=[{"DiskPressure"}] * 2)
        status = pods.until(full, lambda pod: pod["status"]["phase"] == "Failed")["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
        assert "low on resource: ephemeral-storage. Threshold quantity: 256Mi" in status["message"]
        assert is_ready(pods.until(beside, bool))
        eventually(lambda: conditions(cluster), expected=[set(), set()])
        eventually(lambda: taints(cluster), expected=set())
        assert pods.output(pod("echo works")) == "works\n"
        # And once more outside of volumes, where the writable layer is.
        status = pods.finish(pod(FILL.format(place="/tmp")))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
