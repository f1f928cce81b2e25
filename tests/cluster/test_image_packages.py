"""Shipped manifests in pods that have the packages of the image that they name, and no others.

A stand-in has all of the kit's environment. Here it is an environment with links to the packages of PyTorch's
official image, or to those of the trainers' image, mounted where PATH has it.
"""

import json

import pytest

import kitlib as kit
from kitlib import config

from ..unit.test_trainer_image import image_packages, link_packages
from .test_walk_through_torchelastic import IMAGES, events, manifest, upload, volume, write_images

TABLE = """
[[image]]
match = ["{match}"]
preferred = true
directory = "/opt/image"
files = "{files}"
env = {{ PATH = "/opt/image/bin:/usr/bin:/bin" }}
"""
TRAINER = "trainyard/trainer"
DIGITS = config.DATA / "trainers" / "digits_ddp.py"
MISSING = "No module named 'sklearn'"

__all__ = ["upload", "volume"]
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def local_cluster(state_home, tmp_path_factory):
    """A cluster whose images have their own packages alone."""
    folder, entries = tmp_path_factory.mktemp("images"), []
    for match, image in (("pytorch/pytorch", config.DEFAULT_IMAGE), (TRAINER, "<IMAGE>")):
        made = folder / match.replace("/", "-")
        link_packages(made, image_packages(image))
        (made / "bin" / "torchrun").write_text('#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
        (made / "bin" / "torchrun").chmod(0o755)
        entries.append(TABLE.format(match=match, files=made))
    (folder / "images.toml").write_text("".join(entries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_STAND_INS", str(folder / "images.toml"))
        with kit.create_cluster("local", name="own-packages", nodes=4, gpus=2) as cluster:
            yield cluster


def filled(name, tmp_path, image=TRAINER):
    """Fill in a manifest's image, as its header does."""
    path = tmp_path / "filled.yaml"
    path.write_text(config.manifests(*name.split("/")).read_text().replace("<IMAGE>", image))
    return path


@pytest.mark.parametrize(
    ("name", "operator", "job", "program"),
    [
        ("pytorch-job/cpu.yaml", "training-operator", "pytorchjob/torchrun-cpu", "main.py"),
        ("pytorch-job/whole-node.yaml", "training-operator", "pytorchjob/torchrun-gpu", "main.py"),
        ("elastic-job/elasticjob.yaml", "elastic-job", "elasticjob/digits", "trainer.py"),
    ],
)
def test_a_job_of_an_operator_succeeds_with_the_packages_of_its_image(
    name, operator, job, program, local_cluster, tmp_path
):
    kubectl = local_cluster.kubectl
    kit.install(operator, cluster=local_cluster)
    kubectl(f"create configmap {job.partition('/')[2]} --from-file={program}={DIGITS}")
    kubectl(f"create -f {filled(name, tmp_path)}")
    try:
        kubectl(f"wait {job} --for=condition=Succeeded --timeout=300s")
    finally:
        kubectl(f"delete {job}")


def test_a_program_that_needs_more_than_the_official_image_fails_in_it(local_cluster, tmp_path):
    kubectl = local_cluster.kubectl
    kubectl(
        f"run official --image={config.DEFAULT_IMAGE} --restart=Never -- python -c 'import torch, sklearn'"
    )
    kubectl("wait pod/official --for=jsonpath={.status.phase}=Failed --timeout=120s")
    assert MISSING in kubectl("logs official")


def test_the_workers_of_torchelastic_train_with_the_packages_of_their_image(
    volume, upload, local_cluster, tmp_path
):
    write_images(tmp_path / "images")
    kit.upload_image_folder(tmp_path / "images", volume=volume, name="tiny-imagenet-200")
    upload("tiny_imagenet_elastic.py")
    kubectl = local_cluster.kubectl
    workers = manifest(tmp_path, {"--model=resnet101": "--model=resnet18", "--epochs=10": "--epochs=2"})
    kubectl(f"apply -f {workers}")
    kubectl("wait pod -l job=imagenet --for=jsonpath={.status.phase}=Succeeded --timeout=400s")
    (start, *_) = events(kubectl, 1, "start") + events(kubectl, 2, "start")
    assert start["train_images"] == 2 * IMAGES, json.dumps(start)
