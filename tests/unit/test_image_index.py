"""For which architectures an image is, by its registry; and which nodes have another."""

import base64
import json

import pytest

from kitlib import config
from trainyard_kit.container_images.image_index import architectures, compare, split, warn_of_architectures

from . import image_registry, oci_images


@pytest.fixture(scope="module")
def registry():
    base = oci_images.layer(oci_images.entry("note", b"hello"))
    images = {kind: oci_images.image(base, architecture=kind) for kind in ("amd64", "arm64", "s390x")}
    with image_registry.serve() as registry:
        registry.add(
            "both:1", oci_images.index({f"linux/{kind}": images[kind] for kind in ("amd64", "arm64")})
        )
        registry.add("plain:1", images["s390x"])
        other = {"windows/amd64": images["amd64"], "unknown/unknown": images["s390x"]}
        registry.add("windows:1", oci_images.index(other))
        yield registry


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("both:1", {"amd64", "arm64"}),
        ("plain:1", {"s390x"}),
        ("windows:1", {"windows/amd64"}),
        ("missing:1", set()),
        ("both:2", set()),
    ],
)
def test_an_images_architectures_are_read_from_its_index_or_its_configuration(registry, image, expected):
    assert architectures(f"{registry.address}/{image}") == expected


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


def node(kind, **spec):
    return {"metadata": {"labels": {"kubernetes.io/arch": kind, "pool": f"of-{kind}"}}, "spec": spec}


class Cluster:
    """An existing cluster with nodes of some architectures, and Secrets."""

    provider = "existing"

    def __init__(self, *nodes, **secrets):
        self.nodes = [node(item) if isinstance(item, str) else item for item in nodes]
        self.kube, self.secrets = self, secrets

    def get_all(self, kind):
        return self.nodes

    def find(self, kind, name):
        return self.secrets.get(name)


def test_pytorchs_own_image_is_known_to_be_for_amd64_alone():
    image, nodes = f"127.0.0.1:1/{config.DEFAULT_IMAGE}", Cluster("arm64", "amd64").nodes
    assert compare(Cluster(), image, nodes) == ({"amd64"}, "arm64")


TAINT = {"key": "dedicated", "value": "arm", "effect": "NoSchedule"}
PRESSED = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
TERM = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}


@pytest.mark.parametrize(
    ("nodes", "spec", "foreign"),
    [
        (["amd64"], {}, ""),
        (["s390x"], {}, "s390x"),  # as if it was built on another machine
        (["arm64"], {}, "arm64"),
        (["amd64", "arm64"], {}, "arm64"),
        (["amd64", "arm64"], {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, ""),
        (["amd64", "arm64"], {"nodeSelector": {"pool": "of-arm64"}}, "arm64"),
        (["amd64", "arm64"], {"affinity": {"nodeAffinity": REQUIRED}}, ""),
        (["amd64", node("arm64", taints=[TAINT])], {}, ""),
        (["amd64", node("arm64", taints=[TAINT])], {"tolerations": [{"operator": "Exists"}]}, "arm64"),
        (["amd64", node("arm64", taints=[PRESSED])], {}, "arm64"),
    ],
)
def test_a_launch_names_nodes_on_which_its_pods_may_run_and_the_image_may_not(registry, nodes, spec, foreign):
    base = oci_images.layer(oci_images.entry("note", b"hello"))
    registry.add("amd:1", oci_images.image(base, architecture="amd64"))
    image = f"{registry.address}/amd:1"
    container = {"name": "main", "image": image}
    job = {"kind": "Job", "spec": {"template": {"spec": {"containers": [container], **spec}}}}
    warnings = list(warn_of_architectures(Cluster(*nodes), [job]))
    assert [words.partition(";")[0] for words in warnings] == [
        f"image {image} is for amd64, and its pods may run on {foreign} nodes"
    ] * bool(foreign)


def secret(**auths):
    content = json.dumps({"auths": auths}).encode()
    return {"data": {".dockerconfigjson": base64.b64encode(content).decode()}}


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("entry", [{"auth": "bWU6d29yZA=="}, {"username": "me", "password": "word"}, None])
def test_a_registry_that_wants_a_login_has_that_of_the_pods_secret(registry, monkeypatch, entry, tokens):
    monkeypatch.setattr(registry, "credentials", "me:word")
    monkeypatch.setattr(registry, "tokens", tokens)
    kube = Cluster(pull=secret(**{registry.address: entry or {}, "other.example": {"auth": "eDp5"}}))
    expected = ({"s390x"}, "amd64") if entry else (set(), "")
    assert compare(kube, f"{registry.address}/plain:1", [node("amd64")], ["pull"]) == expected
