"""The walk-through on Indexed Jobs, by kubectl alone: MNIST on four pods, one epoch, to its accuracy."""

import json
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
ACCURACY, STAND_IN_ACCURACY = 0.97, 0.9  # the second on drawn images, where the real ones cannot be had

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def mnist(local_cluster):
    """MNIST on the volume ``shared``; all is deleted afterwards."""
    volume = local_cluster.create_volume("shared")
    yield kit.prepare_dataset("mnist", volume=volume)
    local_cluster.kubectl("delete job,service,configmap mnist --ignore-not-found --wait")
    local_cluster.kubectl("wait pod -l batch.kubernetes.io/job-name=mnist --for=delete --timeout=120s")
    volume.delete()


def test_the_whole_manifest_trains_mnist_on_four_nodes_to_its_accuracy(mnist, local_cluster):
    local_cluster.kubectl(f"create configmap mnist --from-file={ROOT / 'trainers' / 'digits_ddp.py'}")
    local_cluster.kubectl(f"apply -f {ROOT / 'manifests' / 'gke-indexed-job'}")
    local_cluster.kubectl("wait job/mnist --for=condition=Complete --timeout=480s")
    shown = local_cluster.kubectl("get pods -l batch.kubernetes.io/job-name=mnist -o json")
    assert len({pod["spec"]["nodeName"] for pod in json.loads(shown)["items"]}) == 4
    first = "batch.kubernetes.io/job-name=mnist,batch.kubernetes.io/job-completion-index=0"
    written = local_cluster.kubectl(f"logs -l {first} --tail=-1")
    events = [json.loads(line[line.index("{") :]) for line in written.splitlines() if '{"event"' in line]
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    assert evaluation["images"] == mnist.test_images
    assert evaluation["accuracy"] >= (STAND_IN_ACCURACY if mnist.synthetic else ACCURACY)
