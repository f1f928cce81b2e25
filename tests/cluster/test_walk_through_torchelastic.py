"""The steps of the walk-through torchelastic-eks by kubectl: an S3 server, etcd, and workers from a bucket.

Their manifest is shipped so; a third joins by the command of docs/walk-throughs.md, and one leaves.
"""

import json
import re
from pathlib import Path

import boto3
import pytest
from PIL import Image

import kitlib as kit

from ..patience import until
from ..walk_throughs.pages import shell_in

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "torch-elastic-eks"
IMAGES = 128  # of each of two classes: four steps in an epoch, which take a ResNet-101 seconds each

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def volume(local_cluster):
    """The volume ``shared``."""
    volume = local_cluster.create_volume("shared")
    yield volume
    volume.delete()


@pytest.fixture
def upload(local_cluster, volume):
    """Start the S3 server and etcd, and upload a trainer; all is deleted afterwards."""
    kubectl = local_cluster.kubectl

    def start(trainer):
        kubectl(f"create configmap imagenet --from-file={ROOT / 'trainers'}/")
        kubectl(f"apply -f {FOLDER / 's3.yaml'} -f {FOLDER / 'etcd.yaml'}")
        kubectl("wait pod/s3 pod/etcd --for=condition=Ready --timeout=120s")
        account = {"aws_access_key_id": "exercise", "aws_secret_access_key": "exercise"}
        with local_cluster.port_forward("service/s3", 5000) as address:
            s3 = boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1", **account)
            s3.create_bucket(Bucket="my-bucket")
            s3.upload_file(ROOT / "trainers" / trainer, "my-bucket", "imagenet/main.py")

    yield start
    kubectl("delete pod,service -l job=imagenet --ignore-not-found")
    for name in ("workers", "etcd", "s3"):
        kubectl(f"delete --ignore-not-found -f {FOLDER / name}.yaml")
    kubectl("delete configmap imagenet --ignore-not-found")


def write_images(folder):
    """Write a few images of two classes."""
    for part, count in (("train", IMAGES), ("val", 1)):
        for number in range(2 * count):
            place = folder / part / f"class-{number % 2}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (number, 128, 255 * (number % 2))).save(place)


def events(kubectl, worker, kind):
    """Return the events of a kind in a worker's log."""
    lines = kubectl(f"logs imagenet-worker-{worker}").splitlines()
    return [json.loads(line) for line in lines if line.startswith(f'{{"event":"{kind}"')]


def test_the_workers_as_shipped_train_on_as_a_third_joins_and_one_leaves(
    volume, upload, local_cluster, tmp_path
):
    write_images(tmp_path / "images")
    kit.upload_image_folder(tmp_path / "images", volume=volume, name="tiny-imagenet-200")
    upload("tiny_imagenet_elastic.py")
    kubectl, shell = local_cluster.kubectl, shell_in(tmp_path, local_cluster.name)
    text = (FOLDER / "workers.yaml").read_text().replace("<BUCKET>", "my-bucket")
    (tmp_path / "workers.yaml").write_text(text.replace("<IMAGE>", "trainyard/trainer"))
    joins, leaves = re.search(
        "A third worker joins by `(.+?)`; workers leave by `(.+?)`",
        (ROOT / "docs" / "walk-throughs.md").read_text(),
    ).groups()

    def world(worker):
        """Return the newest world size in which a worker has made a step."""
        steps = events(kubectl, worker, "step")
        return steps[-1]["world_size"] if steps else 0

    shell("kubectl apply -f workers.yaml")
    kubectl("wait pod -l job=imagenet --for=condition=Ready --timeout=120s")
    until(lambda: world(2) == 2, "two to train")
    shell(joins)
    until(lambda: world(1) == 3, "the third to take part")
    shell(leaves)
    until(lambda: world(2) == 2 == world(3), "the others to train on")
    kubectl("wait pod -l job=imagenet --for=jsonpath={.status.phase}=Succeeded --timeout=600s")
    assert kubectl("logs imagenet-worker-2 -c fetch").startswith("s3://my-bucket/imagenet/main.py: main.py")
    starts, steps = (events(kubectl, 2, kind) + events(kubectl, 3, kind) for kind in ("start", "step"))
    assert {(event["model"], event["train_images"]) for event in starts} == {("resnet101", 2 * IMAGES)}
    assert {step["samples"] for step in steps} == {64}
    assert {step["step"] for step in steps} >= {39}
