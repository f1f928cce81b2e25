"""Training by parameter servers, as it is sent: what the master is given, and what is refused before."""

import json
from types import SimpleNamespace

import pytest

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.jobs import launcher
from kitlib.k8s import job_kinds, pods
from kitlib.runs.logs import LogCache
from kitlib.runs.status import run_status
from trainyard_kit.elasticdl.model_zoo import find_zoo

from . import objects

TRAINER = "trainers/mnist_parameter_server.py"


def job(trainer=TRAINER, **more):
    arguments = {"data": "/data/mnist", "volumes": {"/data": "shared"}, "name": "test-mnist"}
    return kit.ParameterServer(trainer, **arguments | more)


def of_kind(job, kind, ending=""):
    (matching,) = [
        item for item in job.objects if item["kind"] == kind and item["metadata"]["name"].endswith(ending)
    ]
    return matching


def templates(job):
    return {name: json.loads(text) for name, text in of_kind(job, "ConfigMap", "-templates")["data"].items()}


def test_the_master_may_touch_pods_and_its_own_job_and_nothing_else():
    ps_job = job(name="mine")
    rules = of_kind(ps_job, "Role")["rules"]
    assert [rule["resources"] for rule in rules] == [["pods"], ["jobs"]]
    assert rules[1]["resourceNames"] == ["elasticdl-mine-master"]
    assert not {"*", "patch", "update"} & {verb for rule in rules for verb in rule["verbs"]}
    binding = of_kind(ps_job, "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "elasticdl-mine-master"}]
    assert binding["roleRef"]["name"] == "elasticdl-mine-master"
    assert all(
        not template["spec"]["automountServiceAccountToken"] for template in templates(ps_job).values()
    )


def test_the_first_pod_of_the_master_has_the_published_name_and_the_job_adopts_it():
    ps_job = job().patch({"spec": {"template": {"metadata": {"labels": {"mine": "1"}}}}})
    *_, first, master = ps_job.objects
    assert (first["kind"], first["metadata"]["name"]) == ("Pod", "elasticdl-test-mnist-master")
    assert first["spec"] == master["spec"]["template"]["spec"]
    labels = first["metadata"]["labels"].items()
    assert labels >= master["spec"]["selector"]["matchLabels"].items() and labels >= {"mine": "1"}.items()
    (container,) = first["spec"]["containers"]
    assert {"name": "JOB_NAME", "value": "elasticdl-test-mnist-master"} in container["env"]


@pytest.mark.parametrize(
    "noticed",
    [
        {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    ],
    ids=["reported", "unschedulable"],
)
def test_a_job_is_created_once_its_first_pod_was_noticed(monkeypatch, noticed):
    scheduled = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    kinds = [
        {},
        {"x": {"status": scheduled}},
        {"x": {"status": noticed}},
        {"x": {"status": {"phase": "Running"}}},
    ]
    left = iter([{"Pod": snapshot} for snapshot in kinds])
    monkeypatch.setattr(launcher, "watch_objects", lambda kube, spec: left)
    launcher._wait_until_noticed(None, {"metadata": {"name": "x"}}, about="run")
    assert [snapshot["Pod"]["x"]["status"] for snapshot in left] == [{"phase": "Running"}]


def test_of_two_masters_the_one_that_stays_is_read():
    def master(name, **more):
        labels = job().objects[-1]["spec"]["template"]["metadata"]["labels"]
        meta = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
        return {"metadata": meta | more, "spec": {"containers": [{"name": "main"}]}, "status": {}}

    going = master("z", creationTimestamp="2026-01-01T00:00:01Z", deletionTimestamp="2026-01-01T00:00:02Z")
    objects = SimpleNamespace(kube=None, pods=lambda: [master("a"), going])
    assert LogCache(objects).newest_pods()["master"]["metadata"]["name"] == "a"


def test_state_and_model_lie_on_the_volume():
    ps_job = job(data="/deep/sets/mnist", volumes={"/deep": "a", "/deep/sets": "b"}, args={"seed": 3})
    (container,) = ps_job.objects[-1]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "--state-dir=/deep/sets/parameter-server/test-mnist"
    assert "--model-file=/deep/sets/models/test-mnist.pt" in container["args"]
    assert "--records=/deep/sets/mnist/records/train.npy" in container["args"]
    assert container["args"][-1] == "--seed=3"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"servers": 0}, "servers is a whole number from 1"),
        ({"workers": 0}, "workers is a whole number from 1"),
        ({"grads_to_wait": 5}, "an update waits for more gradients than there are workers"),
        ({"data": "/elsewhere/mnist"}, "on none of the job's volumes"),
        ({"data": "/data/../etc"}, "on none of the job's volumes"),
        ({"volumes": {}}, "on none of the job's volumes"),
        ({"priority": {"workers": "low"}}, "priority is a dict by role"),
        ({"priority": ["worker"]}, "priority is a dict by role"),
        ({"name": "x" * 41}, "at most 40 characters"),
        ({"trainer": "trainers/digits_ddp.py"}, "does not define model"),
    ],
)
def test_unusable_arguments_are_refused_before_anything_is_sent(options, words):
    with pytest.raises(BadInput, match=words):
        job(**options)


def test_functions_may_come_from_a_module_beside_the_file(tmp_path):
    (tmp_path / "parts.py").write_text("def model(): ...\ndef loss(a, b): ...\n")
    path = tmp_path / "mine.py"
    path.write_text("from parts import model, loss\noptimizer = print\ndef dataset(record): ...\n")
    assert set(of_kind(job(path), "ConfigMap", "test-mnist")["data"]) == {"mine.py", "parts.py"}


@pytest.mark.parametrize("text", [b"def custom_model(:", b"x = 1\0"])
def test_a_module_of_a_zoo_that_is_no_python_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(BadInput, match="not valid Python") as refused:
        names = {"loss": "loss", "optimizer": "optimizer", "feed": "feed"}
        find_zoo(str(tmp_path), "mine.custom_model", names, in_image=False)
    assert "mine.py" in refused.value.about


def pod(role, index, phase="Running", **status):
    labels = {"trainyard/replica": role if role == "master" else f"{role}-{index}"}
    return objects.pod(f"elasticdl-x-{role}-{index}", phase=phase, labels=labels, status=status)


def ended(code, at):
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}}
    return {"containerStatuses": [{"state": state}]}


def test_a_run_goes_on_while_one_worker_does():
    master = job(workers=4, servers=2).objects[-1]
    assert job_kinds.desired(master) == 7
    pods = [pod("master", 0), pod("ps", 0), pod("ps", 1), pod("worker", 0)]
    waiting = [pod("worker", number, "Pending") for number in (4, 5, 6)]
    assert str(run_status(master, pods + waiting)).startswith("Running: 4 of 7 pods")
    assert run_status(master, pods[:3] + waiting).phase == "Pending"


def test_a_failed_run_is_explained_by_its_master():
    master = job().objects[-1]
    master["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed"}]}
    early = pod("worker", 0, "Failed", **ended(137, "2026-01-01T00:00:00Z"))
    late = pod("master", 0, "Failed", **ended(1, "2026-01-01T00:01:00Z"))
    text = "Failed: master failed first: exit code 1, without any output"
    assert str(run_status(master, [early, late])) == text
    assert [pods.replica_id(pod) for pod in pods.failed([early, late])] == ["master", "worker-0"]
