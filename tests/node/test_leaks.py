"""Many pods, and many clusters, come and go: nothing of them stays, and the last is served like the first."""

import psutil
import pytest
from soak.footprint import Footprint
from soak.resources import ResourceCounts, control_groups, own_memory, runtime_init

from .clusters import PATIENCE, Pods, eventually, pod, running_cluster, state_home

MEBI = 1024**2
GROWTH = 12 * MEBI


@pytest.fixture(scope="module")
def busy(request):
    """A cluster of these tests' own, whose processes nobody else starts."""
    home = request.config.cache.mkdir("leaks")
    with state_home(home) as place, running_cluster("--nodes", "2", name="busy", home=place) as running:
        yield running


def job(name, script, *, pods, policy="Never"):
    spec = pod(script, restartPolicy=policy, terminationGracePeriodSeconds=0)["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 2 * pods,
            "template": {"spec": spec},
        },
    }


def until(cluster, name, condition):
    cluster.kubectl("wait", f"--for={condition}", f"job/{name}", f"--timeout={2 * PATIENCE}s")


def gone(cluster, name):
    cluster.kubectl("delete", "job", name, "--cascade=foreground", f"--timeout={2 * PATIENCE}s")


def come_and_go(cluster, number, *, pods):
    """Let ``pods`` pods live: half end by themselves, a quarter in the middle, a quarter after a kill."""
    quarter = pods // 4
    many, kept, hit = f"many-{number}", f"kept-{number}", f"hit-{number}"
    cluster.kubectl("create", "-f", "-", stdin=job(many, "true", pods=pods - 2 * quarter))
    until(cluster, many, "condition=Complete")
    cluster.kubectl("create", "-f", "-", stdin=job(kept, "sleep 601", pods=quarter))
    cluster.kubectl("create", "-f", "-", stdin=job(hit, "sleep 602", pods=quarter, policy="OnFailure"))
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


def test_a_directory_a_process_and_a_descriptor_too_many_are_seen(busy):
    before = ResourceCounts.of(busy.root)
    Pods(busy).running(pod("sleep 600", name="stray"))
    stray = busy.root / "pods" / "stray"
    stray.mkdir()  # after a pod has run: a kubelet that starts removes what is no pod's
    kinds = {line.split(":")[0] for line in ResourceCounts.of(busy.root).differences(before)}
    stray.rmdir()
    busy.kubectl("delete", "pod", "stray", "--now", f"--timeout={PATIENCE}s")
    assert kinds >= {"processes", "namespaces", "interfaces", "descriptors", "files", "pod_directories"}


def test_sixty_pods_leave_no_process_namespace_mount_descriptor_or_file(busy):
    come_and_go(busy, 0, pods=8)  # what is made once: threads, caches, connections
    eventually(lambda: ResourceCounts.of(busy.root).pod_directories, expected=0)
    # A namespace without pods loses its group with the next sweep.
    eventually(lambda: [group for group in control_groups(busy.root) if is_below_cluster(group)], expected=[])
    before = ResourceCounts.of(busy.root)
    lasting = [busy.process("localkube.kubelet"), runtime_init(busy.root), busy.processes()[0]]
    memory = [own_memory(process) for process in lasting]
    come_and_go(busy, 1, pods=60)
    eventually(lambda: ResourceCounts.of(busy.root), expected=before)
    for process, size in zip(lasting, memory, strict=True):
        assert own_memory(process) - size < GROWTH, process


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
