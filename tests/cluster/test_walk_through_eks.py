"""The EKS workshop's steps 5 and 6, by kubectl: CIFAR-10 on two workers, then the test of their model."""

import json
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "eks-workshop"
ACCURACY = {"real": 0.74, "synthetic": 0.8}  # after ten epochs over all images

pytestmark = pytest.mark.cluster


@pytest.fixture
def volume(local_cluster):
    """The volume ``shared``; all is deleted afterwards."""
    volume = local_cluster.create_volume("shared")
    trainers = " ".join(f"--from-file={ROOT / 'trainers' / name}.py" for name in ("cifar10_ddp", "evaluate"))
    local_cluster.kubectl(f"create configmap cifar10 {trainers}")
    yield volume
    for command in ("job,service cifar10-train", "job cifar10-test", "configmap cifar10"):
        local_cluster.kubectl(f"delete {command} --ignore-not-found --cascade=foreground")
    for run in local_cluster.runs():
        if run["run"].startswith("prepare-"):
            local_cluster.run(run["run"]).delete()
    volume.delete()


def evaluation(cluster, selector):
    """Return the ``eval`` event in the logs of a job's pods."""
    written = cluster.kubectl(f"logs -l {selector} --tail=-1")
    events = [json.loads(line) for line in written.splitlines() if line.startswith('{"event"')]
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    return evaluation


def train_and_test(cluster, *, timeout):
    """Apply the manifests as they are shipped; return what the workers and what the test Job report."""
    cluster.kubectl(f"apply -f {FOLDER / 'service.yaml'} -f {FOLDER / 'train.yaml'}")
    cluster.kubectl(f"wait job/cifar10-train --for=condition=Complete --timeout={timeout}s")
    columns = "-o custom-columns=NODE:.spec.nodeName --no-headers"
    nodes = cluster.kubectl(f"get pods -l batch.kubernetes.io/job-name=cifar10-train {columns}").split()
    assert len(set(nodes)) == len(nodes) == 2
    cluster.kubectl(f"apply -f {FOLDER / 'test.yaml'}")
    cluster.kubectl("wait job/cifar10-test --for=condition=Complete --timeout=300s")
    trained, tested = (f"batch.kubernetes.io/job-name=cifar10-{job}" for job in ("train", "test"))
    return evaluation(cluster, trained), evaluation(cluster, tested)


def test_the_manifests_train_and_test_on_few_images(volume, local_cluster):
    kit.prepare_dataset("cifar10", volume=volume, synthetic=True, limit=400)
    trained, tested = train_and_test(local_cluster, timeout=300)
    assert tested["accuracy"] == trained["accuracy"]
    assert tested["images"] == trained["images"] == sum(map(sum, tested["confusion"])) == 80
    assert len(tested["mistakes"]) == min(12, tested["images"] - tested["correct"])
    written = local_cluster.kubectl("logs job/cifar10-test")
    assert written.count("Accuracy for class: ") == 10
    assert all(len(mistake["png"]) > 1000 for mistake in tested["mistakes"]), "the log carries the pictures"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_epochs_on_two_workers_reach_the_workshops_accuracy(volume, local_cluster):
    dataset = kit.prepare_dataset("cifar10", volume=volume)
    trained, tested = train_and_test(local_cluster, timeout=3000)
    assert trained["images"] == tested["images"] == dataset.test_images
    assert tested["accuracy"] >= ACCURACY["synthetic" if dataset.synthetic else "real"]
    assert len(tested["per_class"]) == 10
