"""Limits of CPU and memory, kept by control groups where there are some, and without them."""

import json
import os
from pathlib import Path

import pytest

from localkube.kubelet.resources.cgroups import PIDS_LIMIT, RECORD

from .clusters import Pods, eventually, pod, python, running_cluster, state, state_home
from .test_pods_resize import resize

OWN_LIMIT = (
    "from pathlib import Path\nroot = Path('/sys/fs/cgroup')\n"
    "print([int(each.read_text()) for each in root.rglob('memory.max')]\n"
    "  or [int(each.read_text()) for each in root.rglob('memory.limit_in_bytes')])"
)
GREEDY = "held = []\nwhile True: held.append(b'x' * (8 << 20))"
SPIN = (
    "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
)
CORES = "import os; print(len(os.sched_getaffinity(0)), flush=True)"


@pytest.fixture(scope="module")
def groups(cluster):
    """Skip, saying so, where this machine has no control groups to write."""
    if not (cluster.root / RECORD).exists():
        pytest.skip("no control groups can be written here: limits by the kernel were NOT tested")


@pytest.fixture(scope="module")
def without(request):
    """Pods of a cluster that is told to do without control groups."""
    with (
        state_home(request.config.cache.mkdir("lab")) as home,
        running_cluster(
            "--nodes", "1", name="plain", home=home, env={"TRAINYARD_CGROUPS": "off"}, warm=True
        ) as cluster,
        Pods(cluster) as limited_pods,
    ):
        assert not (cluster.root / RECORD).exists()
        cluster.process("localkube.runtime.forkserver.server")  # from now on it forks what is Python
        yield limited_pods


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


def test_a_container_that_has_ended_leaves_no_group(groups, cluster, pods):
    uid = pods.finish(limited("print()", cpu="500m"))["metadata"]["uid"]
    eventually(lambda: any(path.name.startswith(uid) for path in directories(cluster)), expected=False)


def test_without_groups_a_container_runs_on_as_many_cores_as_its_limit(without):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core is all that this machine has")
    assert without.output(limited(CORES, cpu="700m")) == "1\n"
    assert int(without.output(pod(main=python(CORES)))) == len(os.sched_getaffinity(0))


def test_without_groups_the_kubelet_ends_a_container_that_takes_too_much_memory(without):
    assert out_of_memory(without, limited(GREEDY, memory="64Mi"))["exitCode"] == 137


def test_without_groups_what_the_fork_server_has_imported_is_not_the_containers_memory(without):
    source = "import time; time.sleep(1.5); print('stays')"
    finished = without.finish(limited(source, memory="64Mi"))
    assert "terminated" in state(finished), finished
    assert state(finished)["terminated"]["reason"] == "Completed"


def test_without_groups_memory_that_forks_share_counts_once(without):
    source = "import os, time\nheld = b'x' * (500 << 20)\nos.fork(); os.fork()\ntime.sleep(1.5)"
    assert state(without.finish(limited(source, memory="700Mi")))["terminated"]["reason"] == "Completed"
    assert out_of_memory(without, limited(source, memory="100Mi"))["exitCode"] == 137


def test_without_groups_a_container_moves_to_more_cores_when_it_is_resized(without):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core is all that this machine has")
    source = f"import time\nwhile True:\n  {CORES}\n  time.sleep(0.2)"
    name = without.running(limited(source, cpu="500m", memory="64Mi"))["metadata"]["name"]
    resize(without.cluster, name, {"limits": {"cpu": "1500m"}, "requests": {"cpu": "1500m"}})
    eventually(lambda: without.logs(name, tail_lines=1), expected="2\n")


def test_memory_volumes_have_the_size_that_they_were_given(pods):
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    manifest = pod("df -k /dev/shm | tail -1; dd if=/dev/zero of=/dev/shm/x bs=1M count=17 2>&1; true")
    manifest["spec"]["volumes"] = [shm]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    output = pods.output(manifest)
    assert " 16384 " in output
    assert "16777216" in output or "No space left" in output


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


def test_a_container_that_could_not_be_started_leaves_no_group(groups, cluster, pods):
    manifest = pod(main={"command": ["/no/such/program"], "resources": {"limits": {"cpu": "500m"}}})
    uid = pods.finish(manifest)["metadata"]["uid"]
    eventually(lambda: any(path.name.startswith(uid) for path in directories(cluster)), expected=False)


def test_pods_that_ask_for_nothing_share_a_weight_and_count_their_processes_alone(groups, pods):
    finished = pods.finish(pod("cat /proc/self/cgroup"))
    assert f"best-effort/{finished['metadata']['uid']}\n" in pods.logs(finished)


@pytest.mark.parametrize("limits", [{}, {"cpu": "500m"}], ids=["best effort", "limited"])
def test_the_processes_of_a_pod_are_limited(groups, cluster, pods, limits):
    uid = pods.running(pod("exec sleep 600", main={"resources": {"limits": limits}}))["metadata"]["uid"]
    roots = [Path(path) for path in json.loads((cluster.root / RECORD).read_text())]
    pid_limits = [limit.read_text().strip() for root in roots for limit in root.glob(f"**/{uid}/pids.max")]
    assert pid_limits == [str(PIDS_LIMIT)]
