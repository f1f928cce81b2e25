"""For which architectures an image is, by its registry; and what the preflight says of nodes of others."""

import pytest

from kitlib import config
from trainyard_kit import cluster_checks as preflight
from trainyard_kit.container_images.image_index import architectures, split

from . import image_registry, oci_images


@pytest.fixture(scope="module")
def registry():
    base = oci_images.layer(oci_images.entry("note", b"hello"))
    made = {kind: oci_images.image(base, architecture=kind) for kind in ("amd64", "arm64", "s390x")}
    with image_registry.serve() as registry:
        registry.add("both:1", oci_images.index({f"linux/{kind}": made[kind] for kind in ("amd64", "arm64")}))
        registry.add("plain:1", made["s390x"])
        yield registry.address


@pytest.mark.parametrize(
    ("image", "expected"),
    [("both:1", {"amd64", "arm64"}), ("plain:1", {"s390x"}), ("missing:1", set()), ("both:2", set())],
)
def test_an_images_architectures_are_read_from_its_index_or_its_configuration(registry, image, expected):
    assert architectures(f"{registry}/{image}") == expected


def test_a_registry_that_does_not_answer_says_nothing():
    assert architectures("127.0.0.1:1/a:1") == set()


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("busybox", ("registry-1.docker.io", "library/busybox", "latest")),
        ("docker.io/pytorch/pytorch:2", ("registry-1.docker.io", "pytorch/pytorch", "2")),
        ("localhost:5000/a", ("localhost:5000", "a", "latest")),
        ("ghcr.io/o/i:1@sha256:ab", ("ghcr.io", "o/i", "sha256:ab")),
    ],
)
def test_a_reference_has_a_registry_a_repository_and_a_version(image, parts):
    assert split(image) == parts


class Cluster:
    """An existing cluster with nodes of some architectures."""

    provider = "existing"

    def __init__(self, *kinds):
        self.nodes = [{"metadata": {"labels": {"kubernetes.io/arch": kind}}} for kind in kinds]
        self.kube = self

    def get_all(self, kind):
        return self.nodes


@pytest.mark.parametrize(
    ("kinds", "image", "foreign"),
    [
        (("amd64",), "plain:1", ""),
        (("amd64", "arm64"), "both:1", ""),
        (("amd64", "arm64"), "plain:1", "amd64, arm64"),
        (("arm64",), "missing:1", ""),
    ],
)
def test_nodes_for_which_there_is_no_image_are_named(registry, kinds, image, foreign):
    assert preflight._foreign(Cluster(*kinds), f"{registry}/{image}") == foreign


def test_pytorchs_own_image_is_known_to_be_for_amd64_alone():
    image = f"127.0.0.1:1/{config.DEFAULT_IMAGE}"
    assert preflight._foreign(Cluster("arm64", "amd64"), image) == "arm64"
