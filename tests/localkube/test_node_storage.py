"""When a pod takes too much of the disk, in the kubelet's words."""

import array
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.kubelet.pods.pod_files import FS_IOC_GETFLAGS, FS_TOPDIR_FL, PodFiles
from localkube.kubelet.resources.limits import threads, tree
from localkube.kubelet.resources.local_storage import StorageUsage, excess, is_limited, measure
from localkube.kubelet.resources.unlinked_files import unlinked
from localkube.runtime.trees import disk_usage

MIB = 1 << 20


def pod(*limits, **volumes):
    containers = [
        {"name": f"c{number}", "resources": {"limits": {"ephemeral-storage": limit} if limit else {}}}
        for number, limit in enumerate(limits or (None,))
    ]
    listed = [{"name": name, "emptyDir": source} for name, source in volumes.items()]
    return {"spec": {"containers": containers, "volumes": listed}}


def test_a_pod_without_limits_is_not_looked_at():
    assert not is_limited(pod(scratch={}))
    assert not is_limited(pod(shm={"medium": "Memory", "sizeLimit": "1Mi"}))
    assert is_limited(pod(scratch={"sizeLimit": "1Mi"}))
    assert is_limited(pod(None, "1Mi"))


@pytest.mark.parametrize(
    ("limited", "volumes", "containers", "message"),
    [
        (
            pod("1Mi", scratch={"sizeLimit": "2Mi"}),
            {"scratch": 3 * MIB},
            {},
            'Usage of EmptyDir volume "scratch" exceeds the limit "2Mi". ',
        ),
        (pod("1Mi", "2Mi", scratch={}), {"scratch": 2 * MIB}, {"c0": MIB}, None),
        (
            pod("1Mi", "2Mi", scratch={}),
            {"scratch": 3 * MIB},
            {"c0": MIB},
            "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
        ),
        (
            pod("1Mi", "8Mi"),
            {},
            {"c0": 2 * MIB, "c1": MIB},
            'Container c0 exceeded its local ephemeral storage limit "1Mi". ',
        ),
    ],
    ids=["an emptyDir", "within", "the containers together", "a container"],
)
def test_a_pod_above_its_ephemeral_storage_limit_is_named(limited, volumes, containers, message):
    assert excess(limited, StorageUsage(volumes, containers)) == message


def test_disk_usage_is_what_is_allocated_and_follows_no_links(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"x" * MIB)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 * MIB)
    (tmp_path / "link").symlink_to("/usr")
    assert MIB <= disk_usage(tmp_path) < 2 * MIB
    assert disk_usage(tmp_path / "nothing") == 0


async def count(path):
    return disk_usage(path)


async def test_volumes_and_logs_are_measured_where_they_lie(tmp_path):
    (tmp_path / "volumes" / "scratch").mkdir(parents=True)
    (tmp_path / "volumes" / "scratch" / "file").write_bytes(b"x" * MIB)
    (tmp_path / "logs" / "c0").mkdir(parents=True)
    (tmp_path / "logs" / "c0" / "0.log").write_bytes(b"x" * 2 * MIB)
    stored = await measure(pod("1Mi", scratch={}), tmp_path, {}, count=count)
    assert MIB <= stored.volumes["scratch"] < 2 * MIB
    assert 2 * MIB <= stored.containers["c0"] < 3 * MIB


async def test_a_container_without_a_root_of_its_own_is_not_charged_for_the_hosts(tmp_path):
    stored = await measure(pod("1Mi"), tmp_path, {"c0": os.getpid()}, count=count)
    assert stored.total == 0


def test_a_process_that_has_ended_meanwhile_has_no_threads_and_no_files(tmp_path):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert threads(process.pid) == [] and tree(process.pid) == [process.pid]
    assert unlinked({"name": "c0"}, process.pid, tmp_path) == {}


def test_a_file_with_many_names_counts_once(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * MIB)
    for number in range(64):
        (tmp_path / str(number)).hardlink_to(tmp_path / "file")
    assert disk_usage(tmp_path) <= 2 * MIB


def test_open_files_without_a_name_count_for_the_volume_that_they_are_in(tmp_path):
    source = "import os, sys, time; f = open(sys.argv[1] + '/f', 'wb'); os.unlink(f.name); "
    source += "f.write(bytes(1 << 20)); f.flush(); os.dup(f.fileno()); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", source, str(tmp_path)]
    mounts = [{"name": "v", "mountPath": str(tmp_path)}, {"name": "outer", "mountPath": str(tmp_path.parent)}]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        sizes = unlinked({"name": "c0", "volumeMounts": mounts}, process.pid, tmp_path)
        layer = unlinked({"name": "c0"}, process.pid, tmp_path)
        in_memory = unlinked({"name": "c0", "volumeMounts": mounts}, process.pid, Path("/proc"))
        process.kill()
    assert sizes == {"v": MIB} and layer == {"": MIB} and in_memory == {}


@pytest.mark.parametrize("where", ["on disk", "in memory"])
def test_files_of_pods_are_spread_where_the_file_system_can(where, tmp_path):
    directory = tmp_path if where == "on disk" else Path("/dev/shm")
    files = PodFiles(directory, directory, None, None, None, None)
    for _ in range(2):
        files.spread()
    if subprocess.run(["findmnt", "-no", "FSTYPE", "-T", directory], stdout=-1).stdout == b"ext4\n":
        descriptor, flags = os.open(directory, os.O_RDONLY), array.array("L", [0])
        fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, flags)
        os.close(descriptor)
        assert flags[0] & FS_TOPDIR_FL
