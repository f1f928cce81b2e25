"""Kueue on a local cluster of two racks: its published examples, and the kit's two teams that borrow.

The examples in ``kueue/`` are ``site/static/examples/tas`` of Kueue v0.19.2; the test replaces their image.
"""

import collections
from pathlib import Path

import pytest

import kitlib as kit

RACK, BLOCK, GROUP = (
    f"cloud.provider.com/{level}" for level in ("topology-rack", "topology-block", "node-group")
)
EXAMPLES = Path(__file__).with_name("kueue")
AGNHOST, PAUSE = "registry.k8s.io/e2e-test-images/agnhost:2.53", "registry.k8s.io/pause:3.10"
SLEEPER = "import time\ntime.sleep(600)\n"

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def racks(state_home):
    """A cluster with Kueue: two racks of two nodes, each with room for twelve pods of one core."""
    with kit.create_cluster(
        "local", name="racks", nodes=4, cpus=12, racks=2, labels={GROUP: "tas-group"}
    ) as cluster:
        cluster.kubectl(f"label node node-0 node-1 {BLOCK}=b1")
        cluster.kubectl(f"label node node-2 node-3 {BLOCK}=b2")
        (part,) = kit.install("kueue", cluster=cluster)
        assert (part["version"], part["namespace"]) == ("v0.19.2", "kueue-system")
        yield cluster
        kinds = "localqueues,clusterqueues,resourceflavors,topologies.kueue.x-k8s.io"
        cluster.kubectl("delete jobs --all")
        cluster.kubectl(f"delete {kinds} --all --timeout=60s")
        assert not len(kit.uninstall("kueue", cluster=cluster))
        assert "kueue" not in cluster.kubectl("get customresourcedefinitions,namespaces -o name")
        assert "visibility.kueue" not in cluster.kubectl("get apiservices -o name")


def places(cluster, job, label):
    """Count a Job's pods by the value that a label of their nodes has."""
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.kube.get_all("Node")}
    pods = cluster.kube.get_all("Pod", labels=f"batch.kubernetes.io/job-name={job}")
    return collections.Counter(nodes[pod["spec"]["nodeName"]][label] for pod in pods)


@pytest.mark.parametrize(("example", "pods", "racks_used"), [("required", 10, 1), ("preferred", 40, 2)])
def test_published_jobs_get_the_topology_that_they_require_or_prefer(
    example, pods, racks_used, racks, tmp_path
):
    """Ten pods that require a rack are in one; forty that prefer a block with room for 24 are in two."""
    racks.apply(EXAMPLES / "sample-queues.yaml")
    copy = tmp_path / "job.yaml"
    copy.write_text((EXAMPLES / f"sample-job-{example}.yaml").read_text().replace(AGNHOST, PAUSE))
    job = racks.kubectl(f"create -f {copy} -o jsonpath={{.metadata.name}}").strip()
    racks.kubectl(f"wait job/{job} --for=jsonpath={{.status.ready}}={pods} --timeout=180s")
    used = places(racks, job, RACK)
    assert (used.total(), len(used)) == (pods, racks_used)
    racks.kubectl(f"delete job {job}")


@pytest.fixture
def queued(racks, write_trainer):
    """Launch a job of four pods with a core each in a team's queue."""
    racks.apply("manifests/queues/teams.yaml")
    path, launched = write_trainer(SLEEPER), []

    def launch(name, queue):
        job = kit.IndexedJob(path, name=name, nodes=4, cpu=1, launcher="python")
        job = job.patch({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}})
        launched.append(kit.launch(job, cluster=racks))
        return launched[-1]

    yield launch
    for run in launched:
        run.delete()


def test_a_team_borrows_unused_quota_and_a_third_job_names_what_it_awaits(racks, queued):
    first, borrowing, third = (queued(f"job-{number}", "team-a") for number in range(3))
    for run in (first, borrowing):
        racks.kubectl(f"wait job/{run.name} --for=jsonpath={{.status.active}}=4 --timeout=60s")
    third_workload = 'jsonpath={.items[?(@.metadata.ownerReferences[0].name=="job-2")].metadata.name}'
    name = racks.kubectl(f"get workloads.kueue.x-k8s.io -o '{third_workload}'").strip()
    racks.kubectl(f"wait workload.kueue.x-k8s.io/{name} --for=condition=QuotaReserved=false --timeout=60s")
    (cause,) = [cause for cause in third.why().causes if cause.kind == "Suspended"]
    assert "queue team-a: couldn't assign flavors to pod set main" in cause.what
    assert "insufficient unused quota for cpu in flavor nodes, 4 more needed" in cause.what
    usage = racks.kubectl("get clusterqueue team-a -o jsonpath={.status.flavorsUsage[0].resources[0]}")
    assert '"borrowed":"4"' in usage
    first.delete()
    racks.kubectl("wait job/job-2 --for=jsonpath={.status.active}=4 --timeout=60s")
    assert "Suspended" not in [cause.kind for cause in third.why().causes]


def wait_for_refusal(cluster, run):
    """Wait until Kueue has looked at a run and not admitted it."""
    uid = run.kube.get("Job", run.name)["metadata"]["uid"]
    workload = f"workloads.kueue.x-k8s.io --selector kueue.x-k8s.io/job-uid={uid} --timeout=60s"
    for condition in ("create", "condition=QuotaReserved=false"):
        cluster.kubectl(f"wait -n {run.kube.namespace} {workload} --for={condition}")


def test_an_attendee_is_told_what_a_job_waits_for(racks, write_trainer):
    attendee = kit.workshop.add("ada", cluster=racks)
    own = kit.connect("room-of-ada", kubeconfig=attendee.kubeconfig)
    job = kit.IndexedJob(write_trainer(SLEEPER), name="held", nodes=2, cpu=0.1, launcher="python")
    run = kit.launch(
        job.patch({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-c"}}}), cluster=own
    )
    wait_for_refusal(racks, run)
    (cause,) = [cause for cause in run.why().causes if cause.kind == "Suspended"]
    assert "team-c doesn't exist" in cause.what
    kit.workshop.remove("ada", cluster=racks)
