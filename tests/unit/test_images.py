"""The table of images: which entry an image finds, what is run, and that the documentation shows it."""

from pathlib import Path

import pytest

from kitlib.clusters.trainer_image import missing_tag as missing_for_the_kit
from kitlib.config import DEFAULT_IMAGE
from localkube.controlplane.recipes import RECIPES
from localkube.kubelet.images import image_programs, listing
from localkube.kubelet.images.container_image import ResolvedImage
from localkube.kubelet.images.image_table import (
    UNKNOWN,
    ignored_mounts,
    missing_tag,
    split,
    stand_in,
    table,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "images.md"


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("busybox", "busybox", "latest"),
        ("docker.io/library/busybox:1.36", "busybox", "1.36"),
        ("public.ecr.aws/docker/library/nginx", "nginx", "latest"),
        ("localhost:5000/trainyard/trainer@sha256:0", "trainyard/trainer", "latest"),
        ("1234.dkr.ecr.eu-west-1.amazonaws.com/trainyard/trainer:abc", "trainyard/trainer", "abc"),
        ("registry.k8s.io/jobset/jobset:v0.12.0@sha256:0", "jobset/jobset", "v0.12.0"),
        ("somebody/python:3", "somebody/python", "3"),
    ],
)
def test_an_image_is_known_by_its_repository_and_tag(image, repository, tag):
    assert split(image) == (repository, tag)


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        ("registry.k8s.io/nginx-slim:0.7", "a small static web server"),
        ("quay.io/coreos/etcd:v3.4.3", "etcd 3.4.13, built from its Go module"),
        ("gcr.io/etcd-development/etcd:v3.6.5", "the control plane's own etcd"),
        (
            "kubeflow/training-operator:v1-855e096",
            "Kubeflow Training Operator v1.8.1, built from its Go module",
        ),
        (
            "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
            "the same vector addition, by the kit's torch",
        ),
        ("nvcr.io/nvidia/k8s/cuda-sample:nbody", UNKNOWN.shown),
        ("somebody/python", UNKNOWN.shown),
    ],
)
def test_an_image_finds_the_first_entry_that_fits(image, shown):
    assert stand_in(image).shown == shown


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({}, ["/entry", "default"]),
        ({"args": ["other"]}, ["/entry", "other"]),
        ({"command": ["/mine"]}, ["/mine"]),
        ({"command": ["/mine"], "args": ["other"]}, ["/mine", "other"]),
        ({"command": ["tool", "-v"]}, ["/here/it", "is", "-v"]),
    ],
)
def test_commands_and_arguments_combine_as_in_kubernetes(container, line):
    image = ResolvedImage(
        "i", entrypoint=["/entry"], command=["default"], provides=["tool"], program=["/here/it", "is"]
    )
    assert image.command_line(container) == line


def test_an_image_without_a_command_has_none():
    assert ResolvedImage("i").command_line({}) is None
    assert ResolvedImage("i").command_line({"args": ["x"]}) == ["x"]


def test_what_a_stand_in_will_not_read_is_named():
    mounts = [{"mountPath": path} for path in ("/etc/nginx/conf.d", "/etc/nginxes", "/usr/share/nginx/html")]
    assert ignored_mounts({"image": "nginx", "volumeMounts": mounts}) == ["/etc/nginx/conf.d"]


@pytest.mark.parametrize(
    ("image", "missing"),
    [
        ("pytorch/pytorch:2.15.0", True),
        ("docker.io/pytorch/pytorch:2.15.0-gpu", True),
        ("index.docker.io/pytorch/pytorch:2.15", True),
        (DEFAULT_IMAGE, False),
        ("pytorch/pytorch", False),
        ("pytorch/pytorch:1.13.0-cuda11.6-cudnn8-devel", False),
        ("pytorch/pytorch:0.4-cuda9-cudnn7-devel", False),
        ("registry.example/pytorch/pytorch:mine", False),
        (f"pytorch/pytorch:mine@sha256:{'0' * 64}", False),
        ("busybox:no-such-tag", False),
    ],
)
def test_a_tag_that_docker_hub_does_not_have_of_a_known_repository_is_told(image, missing):
    words = missing_tag(image)
    assert bool(words) is missing
    assert not missing or DEFAULT_IMAGE.rpartition(":")[2] in words
    assert missing_for_the_kit(image) == words  # the kit's and the nodes' answers are the same


def test_every_program_of_the_table_is_one_that_can_be_found_or_obtained():
    ways = {
        *RECIPES,
        *image_programs.SCRIPTS,
        *image_programs.FROM_THE_HOST,
        "applets",
        "kubectl",
        "etcd",
        "metrics-server",
    }
    assert {entry.program for entry in table()} - {""} <= ways
    assert all(entry.provides for entry in table() if entry.program not in ("", "applets"))


def test_the_documentation_shows_the_table():
    assert listing.document() in DOCUMENT.read_text(), (
        "write it anew: python -m localkube.kubelet.images.listing docs/images.md"
    )
