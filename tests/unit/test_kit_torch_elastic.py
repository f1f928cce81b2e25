"""Runs of plain pods: the objects of a TorchElastic, what travels with a trainer, how it is judged."""

from types import SimpleNamespace

import pytest

import kitlib as kit
from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs import checks, launcher
from kitlib.k8s import job_kinds, manifests, names
from kitlib.metrics import events
from kitlib.metrics.rank_processes import rank_processes
from kitlib.runs.control import plan_workers
from kitlib.runs.status import run_status
from trainyard_kit.workshop import attendees

from . import objects

SERVER = {"data": "/data/mnist", "volumes": {"/data": "shared"}, "name": "x"}


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text("import one\n")
    (tmp_path / "one.py").write_text("def late():\n    from two import VALUE\n    return VALUE\n")
    (tmp_path / "two.py").write_text("import torch, trainer\nVALUE = 2\n")
    (tmp_path / "unused.py").write_text("")
    return path


def test_workers_are_made_of_the_template_as_it_is_patched(trainer):
    job = kit.TorchElastic(trainer, nodes=2, min_nodes=1, max_nodes=3, name="digits")
    patch = {"template": {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]}}}
    *first_objects, store, first, second, template = job.patch(patch).objects
    assert [item["kind"] for item in first_objects] == ["ConfigMap", "Service"]
    assert [pod["metadata"]["name"] for pod in (store, first, second)] == [
        "digits-store",
        "digits-0",
        "digits-1",
    ]
    env = {variable["name"]: variable["value"] for variable in second["spec"]["containers"][0]["env"]}
    assert env["A"] == "b"
    assert env["PET_NNODES"] == "1:3"
    assert env["PET_RDZV_ENDPOINT"] == "digits-store.digits:29400"
    assert second["spec"]["hostname"] == "digits-1"
    assert job_kinds.replica_limits(template) == (2, 1, 3)
    assert all(item["metadata"]["labels"][names.RUN] == "digits" for item in job.objects)


@pytest.mark.parametrize(
    ("job", "awaited"),
    [
        (lambda: kit.TorchElastic("trainers/digits_elastic.py", nodes=9, max_nodes=9, name="x"), 0),
        (lambda: kit.PyTorchJob("trainers/digits_elastic.py", nodes=9, max_nodes=9, name="x"), 0),
        (lambda: kit.ParameterServer("trainers/mnist_parameter_server.py", **SERVER), 1),
    ],
    ids=["plain pods", "a store", "a Job adopts its first pod"],
)
def test_a_pod_is_awaited_only_where_an_object_adopts_it(monkeypatch, job, awaited):
    job, waits, created = job(), [], []
    monkeypatch.setattr(launcher, "_wait_until_noticed", lambda kube, pod, *, about: waits.append(pod))
    create = lambda item, dry_run=False: created.append(item) or item  # noqa: E731
    kube = SimpleNamespace(
        find=lambda kind, name: None, create=create, cluster="lab", get_all=lambda kind: []
    )
    checks.check_admission(kube, job, job.objects, replaced=[], about="")
    pods = [item for item in created if item["kind"] == "Pod"]
    assert len(pods) <= 4  # those of a kind are checked by one, and each template by one
    created.clear()
    launcher._create_all(kube, job, job.objects, [], about="")
    assert (len(waits), created) == (awaited, job.objects)


def test_each_launch_has_a_rendezvous_of_its_own(trainer, monkeypatch):
    cluster = objects.cluster(SimpleNamespace(get_all=lambda kind: []))
    job = kit.TorchElastic(trainer)
    assert len({job.id, job.bind(cluster).id, job.bind(cluster).id}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 2, "min_nodes": 3},
        {"nodes": 5, "max_nodes": 4},
        {"min_nodes": 4, "max_nodes": 3, "nodes": 3},
        {"min_nodes": 0},
        {"rendezvous": "etcd3"},
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_created(trainer, wrong):
    with pytest.raises(BadInput):
        kit.TorchElastic(trainer, **wrong)


def pod(number, phase="Running", *, silent=False, leaving=False):
    ready = [objects.condition("ContainersReady"), objects.condition("Ready", "False")] if silent else []
    more = {"labels": {names.WORKER: str(number)}, "conditions": ready, "leaving": leaving}
    return objects.pod(f"digits-{number}", phase=phase, node=f"node-{number}", **more)


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod(0), pod(1), pod(2)], "Running: 3 of 3 pods"),
        ([pod(0), pod(1, "Failed"), pod(2)], "Running: 2 of 3 pods"),
        ([pod(0), pod(2)], "Running: 2 of 3 pods"),
        (
            [pod(0), pod(1), pod(2, silent=True)],
            "Running: 3 of 3 pods; rank 2: its node node-2 does not answer",
        ),
        ([pod(0, "Succeeded"), pod(1, "Succeeded"), pod(2, silent=True)], "Succeeded: 2 of 3 pods"),
        ([pod(0, "Succeeded"), pod(1, "Failed")], "Succeeded: 1 of 3 pods"),
        ([pod(0, "Succeeded"), pod(1)], "Running: 1 of 3 pods, 1 done"),
        ([pod(0), pod(1, "Failed"), pod(2, "Failed")], "Pending: 1 of 3 pods run"),
        ([pod(0, "Pending"), pod(1, "Pending"), pod(2, "Pending")], "Pending: its pods are being created"),
        ([pod(0, "Failed"), pod(1, "Failed")], "Failed: every worker has failed"),
        ([], "Failed: its workers were deleted"),
        ([pod(0, silent=True, leaving=True)], "Failed: node node-0 (rank 0) does not answer"),
        ([pod(0, silent=True)], "Pending: 1 of 3 pods run"),
    ],
)
def test_a_run_of_plain_pods_is_judged_by_the_pods_that_are_left(pods, text):
    template = {
        "kind": "PodTemplate",
        "metadata": {
            "name": "digits",
            "annotations": {
                job_kinds.REPLICAS: "3",
                job_kinds.MIN_REPLICAS: "2",
                job_kinds.MAX_REPLICAS: "4",
            },
        },
    }
    assert str(run_status(template, pods)) == text


def event_of(event, *, rank, world_size=3, at=1.0, **fields):
    return pod(rank), events.Event(event, at, rank, world_size, fields)


def test_a_rank_is_where_the_newest_rendezvous_has_put_it():
    first = [event_of("rendezvous", rank=index, round=0, pid=10 + index) for index in range(3)]
    second = [
        event_of("rendezvous", rank=index, world_size=2, at=2.0, round=1, pid=20 + index)
        for index in range(2)
    ]
    processes = rank_processes([*first, event_of("start", rank=1, at=3.0, pid=99), *second])
    assert {rank: process.pid for rank, process in processes.items()} == {0: 20, 1: 21}
    assert processes[1].pod["metadata"]["name"] == "digits-1"


def test_trainers_that_start_once_say_by_that_where_they_are():
    early = [event_of("start", rank=index, pid=index) for index in range(3)]
    again = [event_of("start", rank=index, world_size=2, at=2.0, pid=5 + index) for index in range(2)]
    processes = rank_processes([*early, *again, event_of("step", rank=0, at=3.0)])
    assert {rank: process.pid for rank, process in processes.items()} == {0: 5, 1: 6}
    assert rank_processes([event_of("start", rank=0, host="digits-0")])[0].pid is None
    assert rank_processes([event_of("step", rank=0)]) == {}


@pytest.mark.parametrize(
    ("existing", "replicas", "leave", "come"),
    [
        ([pod(0), pod(1)], 3, [], [2]),
        ([pod(0), pod(1), pod(2)], 2, [2], []),
        ([pod(0), pod(2)], 3, [], [1]),  # the one that was deleted comes back
        ([pod(0), pod(1, "Failed")], 2, [], [2]),  # the log of the one that gave up stays
        ([pod(0), pod(1, silent=True)], 2, [1], [2]),
        ([pod(0), pod(1, silent=True, leaving=True)], 2, [], [2]),
    ],
)
def test_scaling_makes_the_workers_that_are_missing_and_lets_the_last_ones_go(
    trainer, existing, replicas, leave, come
):
    template = kit.TorchElastic(trainer, name="digits").objects[-1]
    leaving, new = plan_workers(template, replicas, existing)
    assert [int(worker["metadata"]["labels"][names.WORKER]) for worker in leaving] == leave
    assert [int(worker["metadata"]["labels"][names.WORKER]) for worker in new] == come


@pytest.mark.parametrize(
    ("item", "limits"),
    [
        ({"kind": "Job", "spec": {"completions": 3}}, (3, 3, 3)),
        (
            {
                "kind": "ElasticJob",
                "spec": {"minReplicas": 1, "maxReplicas": 4, "replicaSpecs": {"Worker": {"replicas": 2}}},
            },
            (2, 1, 4),
        ),
        (
            {
                "kind": "PyTorchJob",
                "spec": {
                    "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
                    "pytorchReplicaSpecs": {"Worker": {"replicas": 2}},
                },
            },
            (2, 1, 4),
        ),
        (
            {
                "kind": "PyTorchJob",
                "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}},
            },
            (3, 3, 3),
        ),
    ],
)
def test_each_kind_says_how_many_workers_it_may_have(item, limits):
    assert job_kinds.limits(item) == limits


def test_a_trainer_with_the_elastic_runtime_starts_by_its_launcher(trainer):
    by_torchrun = kit.TorchElastic(trainer).objects[-1]["template"]["spec"]["containers"][0]
    assert by_torchrun["command"] == ["torchrun", "/trainyard/trainer/trainer.py"]
    trainer.write_text("import elastic\n")
    objects = kit.TorchElastic(trainer).objects
    launcher = ["python", "/trainyard/trainer/elastic_launch.py", "/trainyard/trainer/trainer.py"]
    assert objects[-1]["template"]["spec"]["containers"][0]["command"] == launcher
    assert {"trainer.py", "elastic.py", "elastic_launch.py", "elastic_rendezvous.py"} <= set(
        objects[0]["data"]
    )
    assert "cifar10_ddp.py" not in objects[0]["data"]


def test_to_a_trainer_in_a_bucket_all_is_sent_that_the_kits_elastic_trainers_import():
    carried = kit.TorchElastic("s3://bucket/main.py").objects[0]["data"]
    needed = ["checkpoints", "cifar10_ddp", "elastic", "elastic_launch", "tiny_imagenet_ddp"]
    assert {f"{name}.py" for name in needed} <= set(carried)


SWEEP = """
name = "Sweep"
api_version = "example.org/v1"
job = "sweeps:Sweep"
replicas = ["trials.*.count"]
limits = "bounds"
fixed_replicas = "controllers"
role = "trial"

[quota]
"sweeps.example.org" = 3
"""


def test_a_kind_of_job_is_described_by_the_file_beside_its_yaml(tmp_path, monkeypatch):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "kind.toml").write_text(SWEEP)
    (kind,) = job_kinds.read_kinds(tmp_path)
    monkeypatch.setitem(job_kinds.KINDS, kind.name, kind)
    bounds = {"minReplicas": 1, "maxReplicas": 8}
    spec = {"trials": {"a": {"count": 2}, "b": {}}, "bounds": bounds, "controllers": 1}
    failure = {"type": "Failed", "status": "True", "message": "no trial is left"}
    item = {"kind": "Sweep", "metadata": {"name": "x"}, "spec": spec, "status": {"conditions": [failure]}}
    assert (job_kinds.limits(item), job_kinds.fixed_replicas(item)) == ((3, 2, 9), 1)
    assert job_kinds.failure(item) == "no trial is left"
    assert job_kinds.selector("Sweep", "x") == "trainyard/run=x,trainyard/role=trial"
    assert (kind.command, kind.entry.value) == ("sweep", "sweeps:Sweep")
    monkeypatch.setattr(attendees, "JOB_QUOTA", kind.quota)
    (role,), (hard,) = (
        manifests.read(config.manifests("attendee", f"{name}.yaml")) for name in ("role", "resourcequota")
    )
    role, hard = (
        attendees._fill_in(thing, "attendee-ada", labels={}, quota=attendees.Quota())
        for thing in (role, hard)
    )
    assert role["rules"][-1] == {"apiGroups": ["example.org"], "resources": ["*"], "verbs": ["*"]}
    assert hard["spec"]["hard"]["count/sweeps.example.org"] == "3"
