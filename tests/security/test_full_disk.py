"""A pod that fills the disk does not end etcd: what it needs was kept for it."""

import os
import subprocess

import pytest

from localkube.controlplane.disk_reserve import DiskReserve

from ..node.clusters import Pods, Refused, eventually, pod, python, running_cluster, state_home

# As long as it can, and as fast.
FILL = """
import os
with open("/fill/all", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 20))
    except OSError as error:
        print(error.strerror)
"""
OBJECTS, BYTES = 60, 900_000  # more than the room that etcd's database has from the start

by_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=700", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(path, *, but):
    """Write a file that leaves ``but`` bytes of its disk free."""
    disk = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - but)


@by_root
def test_the_reserve_is_released_on_a_full_disk_and_taken_again_when_there_is_space(small_disk):
    reserve_file = small_disk / "reserve"
    reserve = DiskReserve(reserve_file, size=64 << 20)
    reserve.check()
    assert reserve_file.stat().st_blocks * 512 == 64 << 20
    fill(small_disk / "most", but=8 << 20)
    reserve.check()
    assert reserve_file.exists()
    fill(small_disk / "all", but=0)
    reserve.check()
    assert not reserve_file.exists()
    reserve.check()
    assert not reserve_file.exists()
    (small_disk / "most").unlink()
    reserve.check()
    assert reserve_file.exists()


@by_root
@pytest.mark.slow
def test_etcd_stores_objects_when_a_pod_has_filled_the_disk(small_disk):
    with (
        state_home(small_disk) as home,
        running_cluster("--nodes", "1", home=home) as cluster,
        Pods(cluster) as pods,
    ):
        reserve_file = cluster.root / "etcd.reserve"
        eventually(reserve_file.exists)
        etcd = cluster.process("etcd")
        volumes = [{"name": "fill", "emptyDir": {}}]
        main = python(FILL) | {"volumeMounts": [{"name": "fill", "mountPath": "/fill"}]}
        name = pods.create(pod(main=main, volumes=volumes))
        eventually(reserve_file.exists, expected=False)
        for number in range(OBJECTS):
            cluster.core.create_namespaced_config_map(
                "kube-public", {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * BYTES}}
            )
        assert etcd.is_running()
        cluster.core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
        eventually(reserve_file.exists)
        assert pods.output(pod("echo works")) == "works\n"


@by_root
@pytest.mark.slow
def test_a_stopped_cluster_whose_disk_has_filled_says_so_when_it_is_started(small_disk):
    with state_home(small_disk) as home, running_cluster("--nodes", "1", home=home) as cluster:
        cluster.localkube("stop")
        for reserve_file in cluster.root.glob("*.reserve"):
            reserve_file.unlink()
        fill(small_disk / "all", but=0)
        with pytest.raises(Refused) as caught:
            cluster.localkube("start")
        (small_disk / "all").unlink()
    assert "the disk is full: " in caught.value.error["what"]
    assert "and a cluster needs 200 MiB" in caught.value.error["what"]
