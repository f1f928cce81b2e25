"""The image of a cluster's training pods: built for it and remembered there, or PyTorch's, or none."""

import pytest

import kitlib as kit
from kitlib import config
from kitlib.datasets.dataset import DatasetJob
from kitlib.errors import BadInput

from . import objects
from .cloud_like import CloudLike, ImageStore


class Elsewhere(CloudLike):
    registry = None


@pytest.fixture
def job():
    return kit.IndexedJob(objects.TRAINER)


@pytest.fixture(params=["a job", "a parameter server", "a dataset", "TorchElastic"])
def each_job(request):
    return {
        "a job": lambda: kit.IndexedJob(objects.TRAINER),
        "a parameter server": lambda: kit.ParameterServer(
            "trainers/mnist_parameter_server.py", data="/data/mnist", volumes={"/data": "shared"}
        ),
        "a dataset": lambda: DatasetJob("digits", volume="shared"),
        "TorchElastic": lambda: kit.TorchElastic(objects.TRAINER),
    }[request.param]()


def test_a_job_on_a_cloud_without_an_image_fails_at_once_and_names_the_call(each_job):
    with pytest.raises(BadInput, match=r"no image .* was built for this cluster") as refused:
        kit.launch(each_job, cluster=CloudLike())
    assert "kit.build_image(cluster=cluster)" in refused.value.fix


def test_an_image_built_for_a_cluster_is_the_image_of_its_jobs(each_job):
    cluster = CloudLike()
    image = kit.build_image(cluster=cluster)
    assert image.reference.endswith(f"/trainyard/trainer@{ImageStore.digest}")
    text = each_job.bind(cluster).manifest()
    assert f"image: {image.reference}\n" in text and "pytorch/pytorch" not in text
    assert cluster.trainer_image() == image.reference


def test_a_remembered_image_stays_as_long_as_its_cluster():
    cluster = CloudLike()
    kit.build_image(cluster=cluster)
    assert {"ConfigMap", "Role", "RoleBinding"} == {kind for kind, *_ in cluster.kube.objects}
    for item in cluster.kube.objects.values():
        assert "trainyard/expires" not in item["metadata"]["labels"]


def test_other_images_and_other_clusters_are_not_remembered():
    cluster = CloudLike()
    kit.build_image("trainyard/sources", dockerfile="images/sources/Dockerfile", cluster=cluster)
    assert cluster.kube.objects == {}


def test_an_image_that_is_named_wins(job, monkeypatch):
    cluster = CloudLike()
    named = kit.IndexedJob(objects.TRAINER, image="registry.example/mine:1")
    assert named.bind(cluster).image == "registry.example/mine:1"
    kit.build_image(cluster=cluster)
    assert named.bind(cluster).image == "registry.example/mine:1"
    monkeypatch.setenv("TRAINYARD_IMAGE", "registry.example/ours:1")
    assert kit.IndexedJob(objects.TRAINER).bind(cluster).image == "registry.example/ours:1"
    assert cluster.trainer_image() == "registry.example/ours:1"


def test_a_cluster_without_a_registry_has_the_official_image_until_one_is_remembered(job):
    cluster = Elsewhere()
    assert job.bind(cluster).image == job.image == config.DEFAULT_IMAGE
    elsewhere = CloudLike()
    kit.build_image(cluster=elsewhere)
    cluster.kube.objects = elsewhere.kube.objects  # the same cluster, reached by an attendee's kubeconfig
    assert job.bind(cluster).image.endswith(ImageStore.digest)
