"""The commands of ElasticDL's walk-through: what they launch, what they reject, and what a model zoo does."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from kitlib import clusters, config
from trainyard_kit.elasticdl.commands import main

from ..unit.cloud_like import CloudLike
from .container_registry import serve_registry
from .parameter_server_job import LocalJob
from .test_container_images import docker, with_engine

ZOO = config.DATA / "trainers" / "model_zoo"
MODEL = "mnist_functional_api.mnist_functional_api.custom_model"
NAMES = {name: name for name in ("loss", "optimizer", "feed", "eval_metrics_fn")}
FUNCTIONS = NAMES | {"model": "custom_model", "prediction_outputs_processor": "PredictionOutputsProcessor"}
TRAIN = {
    "model_zoo": "model_zoo",
    "model_def": MODEL,
    "training_data": "/data/mnist/train",
    "job_name": "test-mnist",
    "volume": "mount_path=/data,claim_name=fileserver-claim",
}


class Local(CloudLike):
    provider = "local"
    registry = None


@pytest.fixture
def elasticdl(tmp_path, monkeypatch):
    """Run a command in a folder with a model zoo; return its exit status and its output."""
    (tmp_path / "model_zoo").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clusters, "connect", lambda name: Local())

    def run(*words, **flags):
        options = [f"--{name}={value}" for name, value in flags.items()]
        done = CliRunner().invoke(main, [*words, *options])
        return done.exit_code, done.output

    assert run("zoo", "init", model_zoo="model_zoo")[0] == 0
    return run


def containers(objects):
    """Return the containers of master, servers and workers, by role."""
    texts = {name: text for item in objects for name, text in (item.get("data") or {}).items()}
    pods = {role: json.loads(texts[f"{role}.json"]) for role in ("ps", "worker")}
    pods["master"] = objects[-1]["spec"]["template"]
    return {role: (pod["spec"], pod["spec"]["containers"][0]) for role, pod in pods.items()}


def test_the_published_flags_arrive_in_the_pods(elasticdl):
    flags = TRAIN | {
        "image_name": "gcr.io/mine/elasticdl:mnist",
        "validation_data": "/data/mnist/test",
        "num_epochs": 5,
        "master_resource_request": "cpu=2,memory=2048Mi",
        "worker_resource_request": "cpu=1,memory=1024Mi,disk=1024Mi",
        "worker_resource_limit": "cpu=2,memory=2048Mi",
        "worker_pod_priority": "low",
        "master_pod_priority": "high",
        "minibatch_size": 32,
        "num_minibatches_per_task": 16,
        "num_ps_pods": 3,
        "num_workers": 4,
        "evaluation_steps": 200,
        "grads_to_wait": 2,
        "image_pull_policy": "IfNotPresent",
        "distribution_strategy": "ParameterServerStrategy",
        "output": "/data/out",
        "envs": "A=1,2,B=3",
        "yaml": "job.yaml",
    }
    assert elasticdl("train", **flags)[0] == 0
    objects = list(yaml.safe_load_all(Path("job.yaml").read_text()))
    by_name = containers(objects)
    args = by_name["master"][1]["args"]
    expected = """
        --records=/data/mnist/train --test-records=/data/mnist/test --model-file=/data/out/model.pt --epochs=5
        --minibatch=32 --minibatches-per-task=16 --servers=3 --workers=4 --evaluation-steps=200
        --grads-to-wait=2 --log-level=INFO
        --trainer=/trainyard/trainer/mnist_functional_api/mnist_functional_api.py
    """
    assert set(expected.split()) <= set(args)
    spec, worker = by_name["worker"]
    assert worker["image"] == "gcr.io/mine/elasticdl:mnist" and worker["imagePullPolicy"] == "IfNotPresent"
    requests = {"cpu": "1", "memory": "1024Mi", "ephemeral-storage": "1024Mi"}
    limits = requests | {"cpu": "2", "memory": "2048Mi"}
    assert worker["resources"] == {"requests": requests, "limits": limits}
    assert {"name": "A", "value": "1,2"} in worker["env"] and {"name": "B", "value": "3"} in worker["env"]
    assert (spec["priorityClassName"], by_name["master"][0]["priorityClassName"]) == ("low", "high")
    assert by_name["ps"][1]["resources"]["requests"] == {"cpu": "1", "memory": "4096Mi"}
    (source,) = (volume for volume in spec["volumes"] if volume["name"] == "trainer")
    assert source["configMap"]["items"][0]["path"] == "mnist_functional_api/mnist_functional_api.py"


def test_the_zoo_is_found_from_inside_as_the_walk_through_has_it(elasticdl, monkeypatch):
    monkeypatch.chdir("model_zoo")
    assert elasticdl("train", **TRAIN, yaml="job.yaml")[0] == 0


def test_on_a_cloud_the_zoo_is_the_one_in_the_image(elasticdl, monkeypatch):
    monkeypatch.setattr(clusters, "connect", lambda name: CloudLike())
    assert elasticdl("train", **TRAIN, image_name="r.example/z:1", yaml="job.yaml")[0] == 0
    (_, master) = containers(list(yaml.safe_load_all(Path("job.yaml").read_text())))["master"]
    assert "--trainer=/model_zoo/mnist_functional_api/mnist_functional_api.py" in master["args"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"num_epoch": 1}, r"no such flag.*did you mean --num_epochs"),
        (
            {"use_async": "True", "grads_to_wait": 2},
            "asynchronous training applies each gradient immediately",
        ),
        ({"grads_to_wait": 3}, "an update waits for more gradients than there are workers"),
        ({"evaluation_steps": 5}, "no data to evaluate on"),
        ({"distribution_strategy": "AllreduceStrategy"}, "trainyard launch"),
        ({"restart_policy": "Always"}, "containers are not restarted"),
        ({"num_workers": 0}, r"--num_workers.*0 is not in the range"),
        ({"worker_pod_priority": "high=0.5"}, "all workers have the same priority"),
        ({"worker_resource_request": "cpus=1"}, "cpus is not one of cpu, memory, disk, gpu"),
        ({"ps_resource_request": "cpu=1,gpu=1"}, "only workers can have GPUs"),
        ({"volume": "host_path=/x,mount_path=/data"}, "folders of nodes cannot be mounted"),
        ({"volume": ""}, "need a volume"),
        ({"training_data": "/elsewhere/train"}, "on no volume"),
        ({"envs": "A"}, "this is not a variable"),
        ({"model_zoo": "nowhere"}, "no such model zoo.*elasticdl zoo init"),
        ({"model_def": "mnist.custom_model"}, r"has no mnist\.py.*it has mnist_functional_api"),
        ({"model_def": "custom_model"}, "this is not package.module.function"),
        ({"loss": "cost"}, r"does not define cost\(labels, predictions\)"),
    ],
)
def test_unusable_flags_are_refused_with_a_fix(elasticdl, flags, words):
    status, output = elasticdl("train", **TRAIN | {"yaml": "job.yaml"} | flags)
    assert status != 0 and not Path("job.yaml").exists()
    assert re.search(words, output, re.DOTALL), output


def test_zoo_init_keeps_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def custom_model(): ...")
    Path("requirements.txt").write_text("mine==1\n")
    done = CliRunner().invoke(main, ["zoo", "init", "--base_image=base:1"])
    assert done.exit_code == 0 and "requirements.txt exists" in done.output
    assert "ARG BASE=base:1\n" in Path("Dockerfile").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Dockerfile", "mine.py", "requirements.txt"]


@with_engine
def test_zoo_build_and_push_bring_the_zoo_to_a_registry(tmp_path_factory, elasticdl):
    Path("model_zoo/Dockerfile").write_text("FROM scratch\nCOPY . /model_zoo\n")
    with serve_registry(tmp_path_factory.mktemp("registry")) as registry:
        image = f"{registry}/elasticdl:mnist"
        try:
            assert elasticdl("zoo", "build", "model_zoo", image=image)[0] == 0
            status, output = elasticdl("zoo", "push", image)
            assert status == 0 and "sha256:" in output
        finally:
            docker("rmi", "--force", image)


# The trainer


def write_digits(path, count):
    """Write records like MNIST's: a label, and pixels that are brighter for larger labels."""
    labels = np.arange(count, dtype=np.uint8) % 10
    rows = np.concatenate([labels[:, None], np.repeat(labels[:, None] * 25, 784, axis=1)], axis=1)
    np.save(path, rows.view("V785").ravel(), allow_pickle=False)
    return path


def train(folder, **settings):
    """Run a job with a worker and a server; return it."""
    (folder / "records").mkdir(parents=True)
    zoo = shutil.copytree(ZOO, folder / "zoo", dirs_exist_ok=True)
    job_settings = {
        "trainer": zoo / "mnist_functional_api" / "mnist_functional_api.py",
        "model_zoo": zoo,
        "functions": json.dumps(FUNCTIONS),
        "test_records": folder / "test",
        "log_level": "INFO",
        "servers": 1,
        "workers": 1,
        "minibatch": 32,
    }
    for part, count in (("train", 128), ("test", 64)):
        write_digits(folder / "records" / f"{part}.npy", count)
    with LocalJob(folder, **job_settings | settings) as job:
        job.flags.append(f"--records={folder / 'train'}")  # a part of a dataset
        job.start("master", "server", "worker")
        assert job.join("master") == 0, job.everything()
        job.join("worker")
    return job


def test_a_module_of_a_zoo_trains_is_evaluated_and_predicts(tmp_path):
    trained = train(tmp_path / "train", epochs=2, evaluation_steps=4, log_every=1)
    assert re.search(r"\[INFO\] Loss = \d", trained.log("worker").read_text())
    lines = trained.log("master").read_text()
    assert re.search(r"\[INFO\] Evaluation at step \d+: accuracy = \d", lines)
    last = trained.events("eval", "master")[-1]
    assert last["images"] == 64 and "correct" not in last, "the metrics are those of eval_metrics_fn"

    unused = {"epochs": 0, "init": trained.model_file}
    judged = train(tmp_path / "evaluate", mode="evaluation", **unused)
    (again,) = judged.events("eval", "master")
    assert "[INFO] Evaluation: accuracy = " in judged.log("master").read_text()
    assert (again["accuracy"], again["loss"]) == (last["accuracy"], last["loss"])

    checkpoints = unused | {"init": tmp_path / "train" / "state"}
    predicted = train(tmp_path / "predict", mode="prediction", **checkpoints)
    assert predicted.events("predictions", "master")[0]["images"] == 64
    predictions = re.findall(r"predicts, by class: \[(.*)\]", predicted.log("worker").read_text())
    assert sum(int(word) for line in predictions for word in line.split(",")) == 64
