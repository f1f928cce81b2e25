"""Clusters made, found again, ended and begun anew: nothing is left of their pods, nor of them when deleted.

Starts that stand still: the part to blame is named soon, with its log; what is only slow is waited for. A
start that fails leaves a stopped cluster as it was.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from soak.footprint import Footprint
from soak.resources import ResourceCounts, control_groups, own_memory, runtime_init

from ..rows import slow
from .clusters import (
    PATIENCE,
    REPOSITORY,
    Pods,
    Refused,
    RunningCluster,
    answer,
    eventually,
    localkube,
    on_node,
    pod,
    running_cluster,
    state_home,
)
from .workloads import job

GROWTH = 12 << 20  # bytes
CREATE = ("create", "lab", "--nodes", "1", "--no-warm")
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


def begin(home, *arguments):
    """Run a verb that takes long and return the process."""
    command = [sys.executable, "-m", "localkube", *arguments]
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


def test_concurrent_creates_give_one_cluster(home):
    first, second = (
        answer(*process.communicate()) for process in [begin(home, *CREATE), begin(home, *CREATE)]
    )
    assert first["state"] == second["state"] == "running"
    assert first["processes"] == second["processes"]
    assert localkube(*CREATE, home=home)["processes"] == first["processes"]

    with pytest.raises(Refused) as caught:
        localkube("create", "lab", "--nodes", "2", "--no-warm", home=home)
    assert "runs already, with nodes=1" in caught.value.error["what"]
    assert "delete it" in caught.value.error["fix"]

    cluster = RunningCluster(home, first)
    traces = occupy(cluster)
    assert len(traces.namespaces) > 4
    assert len(traces.processes) > 8
    cluster.close()
    (cluster.root / "cluster.json").write_text("not json")
    assert localkube("status", "lab", home=home)["state"] == "broken"
    try:
        assert localkube("delete", "lab", home=home) == {"name": "lab", "state": "absent", "existed": True}
        assert traces.leftovers() == []
    finally:
        for process in traces.processes:
            if process.is_running():
                process.send_signal(signal.SIGKILL)
    assert localkube("list", home=home) == []


def test_a_create_that_is_interrupted_leaves_nothing(home):
    creating = begin(home, *CREATE)
    for line in creating.stdout:
        if "starting the control plane" in json.loads(line).get("progress", ""):
            creating.send_signal(signal.SIGINT)
    creating.communicate(timeout=PATIENCE)
    assert creating.returncode != 0
    assert localkube("status", "lab", home=home)["state"] == "absent"
    assert not (home / "trainyard" / "clusters" / "lab").exists()


@pytest.mark.slow
def test_clusters_that_come_and_go_leave_nothing(request, tmp_path):
    """`make soak CREATE=200` does it two hundred times."""
    with state_home(request.config.cache.mkdir("cycles")) as home:
        scratch = {"TMPDIR": str(tmp_path)}
        descriptors = psutil.Process().num_fds()
        for _ in range(2):
            with running_cluster("--nodes", "2", name="cycle", home=home, env=scratch) as cluster:
                Pods(cluster).running(pod("sleep 600"))
                traces = Footprint.of(cluster.root)
                kinds = {line.split()[0] for line in traces.leftovers()}
                assert kinds >= {"process", "namespace", "port"}, "what is not gone is seen"
            assert traces.leftovers() == []
        store = home / "trainyard" / "images"  # of the user, and not of a cluster
        assert [path for path in home.rglob("*") if path.is_file() and store not in path.parents] == []
        assert list(tmp_path.iterdir()) == []
        assert psutil.Process().num_fds() == descriptors
        words = [str(process.info["cmdline"]) for process in psutil.process_iter(["cmdline"])]
        assert [line for line in words if str(home) in line] == []


@pytest.fixture(scope="module")
def lab(request):
    """A cluster that is filled, then killed and stopped, and then kept from starting."""
    home = request.config.cache.mkdir("lifecycle")
    with state_home(home) as place, running_cluster("--nodes", "1", home=place) as running:
        yield running


def many_pods(name, script, *, pods, policy="Never"):
    manifest = pod(script, restartPolicy=policy, terminationGracePeriodSeconds=0)
    return job(name, manifest, parallelism=pods, completions=pods, backoffLimit=2 * pods)


def until(cluster, name, condition):
    cluster.kubectl("wait", f"--for={condition}", f"job/{name}", f"--timeout={2 * PATIENCE}s")


def gone(cluster, name):
    cluster.kubectl("delete", "job", name, "--cascade=foreground", f"--timeout={2 * PATIENCE}s")


def come_and_go(cluster, number, *, pods):
    """Let ``pods`` pods live: half end by themselves, a quarter in the middle, a quarter after a kill."""
    quarter = pods // 4
    many, kept, hit = f"many-{number}", f"kept-{number}", f"hit-{number}"
    cluster.kubectl("create", "-f", "-", stdin=many_pods(many, "true", pods=pods - 2 * quarter))
    until(cluster, many, "condition=Complete")
    cluster.kubectl("create", "-f", "-", stdin=many_pods(kept, "sleep 601", pods=quarter))
    cluster.kubectl("create", "-f", "-", stdin=many_pods(hit, "sleep 602", pods=quarter, policy="OnFailure"))
    for name in (kept, hit):
        until(cluster, name, f"jsonpath={{.status.ready}}={quarter}")
    for process in cluster.processes_with("sleep", "602"):
        process.kill()
    counts = [1] * quarter
    eventually(lambda: restarts(cluster, hit), expected=counts)
    for name in (many, kept, hit):
        gone(cluster, name)


def restarts(cluster, name):
    job_pods = cluster.core.list_namespaced_pod("default", label_selector=f"job-name={name}").items
    return [status.restart_count for pod in job_pods for status in pod.status.container_statuses or []]


def is_below_cluster(group):
    return not group.name.startswith("trainyard-")


def test_a_directory_a_process_and_a_descriptor_too_many_are_seen(lab):
    before = ResourceCounts.of(lab.root)
    Pods(lab).running(pod("sleep 600", name="stray"))
    stray = lab.root / "pods" / "stray"
    stray.mkdir()  # after a pod has run: a kubelet that starts removes what is no pod's
    kinds = {line.split(":")[0] for line in ResourceCounts.of(lab.root).differences(before)}
    stray.rmdir()
    lab.kubectl("delete", "pod", "stray", "--now", f"--timeout={PATIENCE}s")
    assert kinds >= {"processes", "namespaces", "interfaces", "descriptors", "files", "pod_directories"}


def test_sixty_pods_leave_no_process_namespace_mount_descriptor_or_file(lab):
    come_and_go(lab, 0, pods=8)  # what is made once: threads, caches, connections
    eventually(lambda: ResourceCounts.of(lab.root).pod_directories, expected=0)
    # A namespace without pods loses its group with the next sweep.
    eventually(lambda: [group for group in control_groups(lab.root) if is_below_cluster(group)], expected=[])
    before = ResourceCounts.of(lab.root)
    lasting = [lab.process("localkube.kubelet"), runtime_init(lab.root), lab.processes()[0]]
    memory = [own_memory(process) for process in lasting]
    come_and_go(lab, 1, pods=60)
    eventually(lambda: ResourceCounts.of(lab.root), expected=before)
    for process, size in zip(lasting, memory, strict=True):
        assert own_memory(process) - size < GROWTH, process


def test_a_cluster_with_a_killed_supervisor_starts_with_its_objects(lab):
    lab.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    traces = occupy(lab)
    kill(lab)
    assert psutil.wait_procs(list(traces.processes), timeout=PATIENCE)[1] == []
    status = lab.localkube("status")
    assert (status["state"], "its supervisor has ended" in status["reason"]) == ("stopped", True)

    again = RunningCluster(lab.home, lab.localkube("start"))
    assert again.kubectl("get", "--raw", "/readyz") == "ok", "it calls itself ready when it is said to be"
    assert again.status["server"] == lab.status["server"]
    assert again.core.read_namespaced_config_map("kept", "default").data == {"a": "b"}
    pods = Pods(again)
    lost = pods.until("busy", lambda pod: pod["status"]["phase"] == "Failed")
    ended = lost["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerStatusUnknown", 137)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    assert pods.output(pod("ls /data", volumes=[claim], **BUSY)) == "file\n"
    traces = Footprint.of(again.root)
    status = again.localkube("stop")
    assert (status["state"], "was stopped" in status["reason"]) == ("stopped", True)
    assert traces.processes and psutil.wait_procs(list(traces.processes), timeout=PATIENCE)[1] == []
    again.close()


@pytest.fixture
def start(lab):
    """Begin ``start``, and return its process when the supervisor is about to run; its end is awaited."""
    processes = []

    def start(*options):
        process = begin(lab.home, "start", lab.name, *options)
        processes.append(process)
        for line in process.stdout:
            if json.loads(line).get("progress") == "starting the control plane":
                return process
        raise AssertionError(process.communicate())

    yield start
    for process in processes:
        process.communicate()
        lab.localkube("stop")


def part(starting, name):
    """Return the process of a part as soon as it runs what it is for."""
    while starting.poll() is None:
        for process in psutil.Process(starting.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if name in [Path(word).name for word in process.cmdline()[:3]]:
                    return process
    raise AssertionError(f"{name} did not run: {starting.communicate()}")


def refused(starting):
    with pytest.raises(Refused) as caught:
        answer(*starting.communicate())
    return caught.value.error


@pytest.mark.parametrize(
    ("program", "name"),
    [("etcd", "etcd"), *slow(("kube-apiserver", "kube-apiserver"), ("localkube.kubelet", "kubelet"))],
)
def test_a_part_that_is_stopped_while_the_cluster_starts_is_named(start, program, name):
    starting = start("--progress-deadline", "5")
    part(starting, program).suspend()
    error = refused(starting)
    assert f"{name} is stalled: it has not run for 5 s" in error["what"]
    assert f"the lines of {name}" in error["fix"]


def test_a_supervisor_that_is_killed_is_named(start):
    starting = start()
    os.kill(part(starting, "localkube.supervisor").pid, signal.SIGKILL)
    assert "the supervisor has ended with status -9" in refused(starting)["what"]


def test_a_part_that_ends_as_soon_as_it_is_started_is_named_with_what_it_wrote(lab):
    (database,) = lab.root.glob("etcd/member/snap/db")
    database.write_bytes(b"damaged" * 10_000)
    with pytest.raises(Refused) as caught:
        localkube("start", lab.name, home=lab.home)
    assert "etcd has ended right after its start " in caught.value.error["what"]
    assert "\n  etcd: " in caught.value.error["what"]
    assert "the lines of etcd" in caught.value.error["fix"]
