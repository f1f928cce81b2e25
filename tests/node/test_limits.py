"""Limits of CPU and memory, kept by control groups: without any, ``test_unprivileged.py``."""

import json
from pathlib import Path

import pytest

from localkube.kubelet.resources.cgroups import PIDS_LIMIT, RECORD

from .clusters import Pods, eventually, pod, python, running_cluster, state, state_home

OWN_LIMIT = (
    "from pathlib import Path\nroot = Path('/sys/fs/cgroup')\n"
    "print([int(each.read_text()) for each in root.rglob('memory.max')]\n"
    "  or [int(each.read_text()) for each in root.rglob('memory.limit_in_bytes')])"
)
GREEDY = "held = []\nwhile True: held.append(b'x' * (8 << 20))"
SPIN = (
    "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
)


@pytest.fixture(scope="module")
def groups(cluster):
    """Skip, saying so, where this machine has no control groups to write."""
    if not (cluster.root / RECORD).exists():
        pytest.skip("no control groups can be written here: limits by the kernel were NOT tested")


def limited(source, **limits):
    return pod(main=python(source) | {"resources": {"limits": limits}})


def out_of_memory(pods, manifest):
    """Return how the container of a pod ended that has taken too much memory."""
    ended = state(pods.finish(manifest))["terminated"]
    assert ended["reason"] == "OOMKilled", ended
    return ended


def test_the_kernel_ends_a_container_that_takes_too_much_memory(groups, pods):
    assert out_of_memory(pods, limited(GREEDY, memory="64Mi"))["exitCode"] == 137


def test_a_container_whose_child_took_too_much_says_so_too(groups, pods):
    source = (
        f"import subprocess, sys\nsys.exit(3 if subprocess.call([sys.executable, '-c', {GREEDY!r}]) else 0)"
    )
    assert out_of_memory(pods, limited(source, memory="64Mi"))["exitCode"] in (3, 137)


def test_the_kernel_throttles_a_container_to_its_cpu_limit(groups, pods):
    seconds = float(pods.output(limited(SPIN, cpu="250m")))
    assert seconds < 1.2  # of 2 that went by; 0.5 and what a late scheduler lets through


def test_a_container_sees_its_own_limit_and_no_other_group(groups, pods):
    assert pods.output(limited(OWN_LIMIT, memory="64Mi")) == f"{[64 << 20]}\n"


def test_memory_volumes_have_the_size_that_they_were_given(pods):
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    manifest = pod("df -k /dev/shm | tail -1; dd if=/dev/zero of=/dev/shm/x bs=1M count=17 2>&1; true")
    manifest["spec"]["volumes"] = [shm]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    output = pods.output(manifest)
    assert " 16384 " in output
    assert "No space left on device" in output


def directories(cluster):
    """Return the control groups of containers."""
    roots = [Path(path) for path in json.loads((cluster.root / RECORD).read_text())]
    return [path for root in roots for path in root.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_nothing_is_left_of_the_groups_of_a_cluster_that_was_killed(groups, request):
    with (
        state_home(request.config.cache.mkdir("lab")) as home,
        running_cluster("--nodes", "1", name="killed", home=home) as cluster,
        Pods(cluster) as pods,
    ):
        pods.running(pod("sleep 600"))
        assert (leftovers := directories(cluster))
        cluster.process("localkube.supervisor", str(cluster.root)).kill()
        pods._names.clear()
        cluster.localkube("delete")
        assert not [path for path in leftovers if path.exists() or path.parent.exists()]


def test_a_command_that_joins_a_container_is_in_its_group(groups, cluster, pods):
    name = pods.running(limited("import time; time.sleep(600)", cpu="500m"))["metadata"]["name"]
    cgroup = cluster.kubectl("exec", name, "--", "cat", "/proc/1/cgroup")
    assert "main.0" in cgroup
    assert cluster.kubectl("exec", name, "--", "cat", "/proc/self/cgroup") == cgroup


def test_pods_that_ask_for_nothing_share_a_weight_and_count_their_processes_alone(groups, pods):
    finished = pods.finish(pod("cat /proc/self/cgroup"))
    assert f"best-effort/{finished['metadata']['uid']}\n" in pods.logs(finished)


@pytest.mark.parametrize("limits", [{}, {"cpu": "500m"}], ids=["best effort", "limited"])
def test_the_processes_of_a_pod_are_limited(groups, cluster, pods, limits):
    uid = pods.running(pod("exec sleep 600", main={"resources": {"limits": limits}}))["metadata"]["uid"]
    roots = [Path(path) for path in json.loads((cluster.root / RECORD).read_text())]
    pid_limits = [limit.read_text().strip() for root in roots for limit in root.glob(f"**/{uid}/pids.max")]
    assert pid_limits == [str(PIDS_LIMIT)]


@pytest.mark.parametrize("command", ["true", "/no/such/program"])
def test_a_container_that_has_ended_or_could_not_be_started_leaves_no_group(groups, cluster, pods, command):
    manifest = pod(main={"command": [command], "resources": {"limits": {"cpu": "500m"}}})
    uid = pods.finish(manifest)["metadata"]["uid"]
    eventually(lambda: any(path.name.startswith(uid) for path in directories(cluster)), expected=False)
