"""ElasticDL's walk-through: a job with parameter servers that loses workers, to its user and to a service
that comes first, and takes back what becomes free."""

import json
import time

import pytest
import yaml

import kitlib as kit
from kitlib import config
from kitlib.k8s import pods
from kitlib.k8s.quantities import parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.metrics import events

IMAGES = 960
NAME = "test-mnist"
SECONDS = 240  # for each step of it, on a busy machine

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def volume(local_cluster):
    made = local_cluster.create_volume("fileserver-claim")
    yield made
    for each in local_cluster.runs():
        if each["run"] == NAME or each["run"].startswith("prepare-"):
            local_cluster.run(each["run"]).delete()
    made.delete()


@pytest.fixture
def third(local_cluster):
    """How much CPU a worker asks for, so that a node has room for two, and for servers and a master."""
    return 0.35 * min(parse_quantity(each["cpu"]) for each in local_cluster.nodes())


@pytest.fixture
def nginx(local_cluster, third, tmp_path):
    """The walk-through's service, one pod of it, with requests like the workers'."""
    item = yaml.safe_load(config.manifests("elastic-scheduling", "nginx.yaml").read_text())
    (container,) = item["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": f"{third:.3f}"}}
    (tmp_path / "nginx.yaml").write_text(yaml.safe_dump(item))
    local_cluster.apply("manifests/priority/high.yaml")
    local_cluster.apply(tmp_path / "nginx.yaml")
    yield "test-nginx"
    local_cluster.kubectl("delete deployment test-nginx --cascade=foreground --wait")


@pytest.fixture
def until(local_cluster):
    """Wait until the running pods, by their names, are as a function says; return them."""

    def wait_until(suits, what):
        def running(seen):
            alive = (each for each in seen["Pod"].values() if not each["metadata"].get("deletionTimestamp"))
            return sorted(each["metadata"]["name"] for each in alive if pods.phase(each) == "Running")

        return running(
            wait(
                watch_objects(local_cluster.kube, WatchSpec("Pod")),
                until=lambda seen: suits(running(seen)),
                timeout=SECONDS,
                what=what,
                about="the walk-through",
                resume="",
                describe=lambda seen: str(running(seen)),
            )
        )

    return wait_until


def workers(running):
    return [name for name in running if name.startswith(f"elasticdl-{NAME}-worker-")]


def told(run, event, *, rank="master", after=0.0):
    """Return the first event of a kind that a pod tells after a time, waiting for it."""
    for each in events.parse(run.logs(rank=rank, follow=True)):
        if each.event == event and each.time > after:
            return each
    raise AssertionError(f"{rank} ended without another {event}")


def test_workers_are_replaced_give_way_to_a_service_and_come_back_and_each_record_counts(
    local_cluster, volume, third, nginx, until
):
    data = kit.prepare_dataset("mnist", volume=volume, synthetic=True, limit=IMAGES, records=True)
    job = kit.ParameterServer(
        "trainers/mnist_parameter_server.py",
        name=NAME,
        data=data,
        workers=4,
        servers=2,
        epochs=100_000,  # it does not end before we do
        minibatch_size=64,
        minibatches_per_task=2,
        evaluation_steps=15,
        cpu=round(third, 3),
        priority={"master": "high", "ps": "high", "worker": "low"},
        args={"step_seconds": 0.1, "log_every": 5},
    )
    run = kit.launch(job, cluster=local_cluster)
    ours = until(lambda names: len(workers(names)) == 4 and f"elasticdl-{NAME}-ps-1" in names, "all pods")
    parts = ("master", "ps-0", "ps-1", *(f"worker-{n}" for n in range(4)))
    assert {f"elasticdl-{NAME}-{each}" for each in parts} <= set(ours)
    assert told(run, "step", rank="worker-0").fields["loss"] > 0
    first = told(run, "eval").fields
    assert first["images"] == data.test_images

    local_cluster.kubectl(f"delete pod elasticdl-{NAME}-worker-0 --wait=false")
    until(lambda names: workers(names) == [f"elasticdl-{NAME}-worker-{n}" for n in (1, 2, 3, 4)], "worker 4")

    local_cluster.kubectl(f"scale deployment {nginx} --replicas=7")
    until(
        lambda names: len(workers(names)) == 1 and sum(name.startswith(nginx) for name in names) == 7,
        "the service to have taken the place of three workers",
    )
    listed = json.loads(
        local_cluster.kubectl(f"get pods -o json -l elasticdl-job-name={NAME},elasticdl-replica-type=worker")
    )["items"]
    waiting = [pods.replica_id(each) for each in listed if pods.phase(each) == "Pending"]
    assert len(waiting) == 3
    assert not {f"worker-{n}" for n in range(5)} & set(waiting), "a relaunched worker has a new number"
    told(run, "epoch", after=told(run, "epoch", after=time.time()).time)  # one that a single worker has done
    assert run.status.phase == "Running"

    local_cluster.kubectl(f"scale deployment {nginx} --replicas=1")
    until(lambda names: len(workers(names)) == 4, "four workers")
    last = told(run, "epoch", after=time.time())

    counted = run.metrics("epoch")
    assert list(counted.epoch) == list(range(len(counted)))
    assert set(counted.records) == {data.train_images}
    assert last.fields["epoch"] < len(counted)
    assert told(run, "eval", after=last.time).fields["loss"] < first["loss"]
    run.delete()
    assert "No resources found" in local_cluster.kubectl("get roles,rolebindings -l trainyard/run=test-mnist")
