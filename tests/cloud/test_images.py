"""A cluster's own registry: an image is built in the cluster, pushed by a temporary login, found by its tag.

What BuildKit does in its pod: `tests.programs.test_container_images`; here it is only said to have pushed.
"""

import json

import pytest
from moto.ecr.models import ecr_backends

import kitlib as kit
from trainyard_kit import container_images

from .aws.faults import ACCOUNT
from .eks_processes import EksProcesses
from .gke_lifecycle import GkeProcesses
from .google import repositories
from .google.fake import PROJECT

MEDIA = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST = {"schemaVersion": 2, "mediaType": MEDIA, "config": {"size": 1}, "layers": []}
AMAZONS = "123456789012.dkr.ecr.us-west-2.amazonaws.com/trainyard/lab"
GOOGLES = f"us-central1-docker.pkg.dev/{PROJECT}/trainyard-lab"


@pytest.fixture(params=["eks", "gke"])
def cloud(request, state_home, monkeypatch):
    """A cloud with a cluster, the address of its images, and how one is pushed."""
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    if request.param == "gke":
        google = request.getfixturevalue("google")
        lab = GkeProcesses(google, monkeypatch.setattr).create()
        monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "a token")
        return google, lab, GOOGLES, lambda image: repositories.push(google.rest, image)
    aws = request.getfixturevalue("aws")

    def push(image):
        name, _, tag = image.partition("/")[2].rpartition(":")
        put = ecr_backends[ACCOUNT]["us-west-2"].put_image
        return put(name, json.dumps(MANIFEST | {"tag": tag}), tag, MEDIA).get_image_digest()

    return aws, EksProcesses(aws, monkeypatch.setattr).create(), AMAZONS, push


def test_an_image_is_built_once_in_the_cluster_and_goes_with_it(cloud, dockerfile, monkeypatch):
    where, lab, address, push = cloud
    builds = []

    def build(cluster, image, context, login):
        builds.append((cluster, login))
        return 1.0, push(image)

    monkeypatch.setattr(container_images, "build_in_cluster", build)
    images = [kit.build_image("trainyard/greeting", dockerfile=dockerfile, cluster=lab) for _ in range(2)]
    assert images[0].name.startswith(f"{address}/greeting:") and images[0].digest.startswith("sha256:")
    assert images[0].reference == images[1].reference and images[0].bytes == images[1].bytes
    ((cluster, login),) = builds
    assert cluster is lab and login.host == address.partition("/")[0]
    assert login.user == {"eks": "AWS", "gke": "oauth2accesstoken"}[lab.provider] and login.password
    lab.delete()
    assert where.left() == []
