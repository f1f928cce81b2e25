"""One setting for the registry of all images of the kit's pods, and the Secret for it."""

import json

import pytest

from kitlib.jobs.elastic_job import ElasticJob
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.pytorch_job import PyTorchJob
from kitlib.jobs.torch_elastic import TorchElastic
from kitlib.jobs.train_job import TrainJob
from kitlib.k8s.images import mirrored

from .objects import TRAINER

HUB, QUAY = "registry.example/hub", "quay.io/coreos/etcd:v3.4.13"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("busybox", f"{HUB}/library/busybox"),
        ("busybox:1.36@sha256:00", f"{HUB}/library/busybox:1.36@sha256:00"),
        ("docker.io/library/busybox", f"{HUB}/library/busybox"),
        ("docker.io/busybox", f"{HUB}/library/busybox"),
        ("pytorch/pytorch:2.15.0", f"{HUB}/pytorch/pytorch:2.15.0"),
        (QUAY, QUAY),
        ("localhost/mine", "localhost/mine"),
        ("registry:5000/mine", "registry:5000/mine"),
    ],
)
def test_images_of_docker_hub_come_from_the_mirror_and_others_stay(image, expected):
    assert mirrored(image, HUB) == expected
    assert mirrored(image, f"{HUB}/") == expected
    assert mirrored(image, "") == image
    assert mirrored(QUAY, f"{HUB} quay.io={HUB}") == QUAY.replace("quay.io", HUB)


@pytest.mark.parametrize("way", [IndexedJob, PyTorchJob, ElasticJob, TrainJob, TorchElastic])
def test_the_pods_of_jobs_are_pulled_from_it_with_its_secret(way, monkeypatch):
    monkeypatch.setenv("TRAINYARD_REGISTRY", HUB)
    monkeypatch.setenv("TRAINYARD_PULL_SECRET", "mirror")
    text = json.dumps(way(TRAINER).objects)
    assert f'"image": "{HUB}/pytorch/pytorch' in text
    assert '"image": "pytorch' not in text
    assert text.count('"imagePullSecrets": [{"name": "mirror"}]') == text.count(f'"image": "{HUB}') > 0


def test_the_store_that_is_not_the_trainers_image_has_the_secret_as_well(monkeypatch):
    monkeypatch.setenv("TRAINYARD_PULL_SECRET", "mirror")
    objects = TorchElastic(TRAINER, rendezvous="etcd").objects
    pods = [item for item in objects if item["kind"] == "Pod"]
    assert {pod["metadata"]["name"].endswith("-store") for pod in pods} == {True, False}
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "mirror"}] for pod in pods)
