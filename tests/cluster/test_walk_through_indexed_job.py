"""The walk-through on Indexed Jobs, by kubectl alone, manifests as shipped: MNIST on four pods, one epoch."""

import json
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests" / "gke-indexed-job"
TRAINER = ROOT / "trainers" / "digits_ddp.py"
ACCURACY, STAND_IN_ACCURACY = 0.97, 0.9  # the second on drawn images, where the real ones cannot be had
FEW = 1000  # images, for four steps of four ranks

# What GKE puts on nodes with GPUs.
LABELS, TAINT = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "nvidia.com/gpu=present:NoSchedule"
PODS = "-l batch.kubernetes.io/job-name=mnist"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def volume(local_cluster):
    """The volume ``shared``; it and what the manifests create are deleted afterwards."""
    volume = local_cluster.create_volume("shared")
    yield volume
    local_cluster.kubectl("delete job,service,configmap mnist --ignore-not-found --wait")
    local_cluster.kubectl(f"wait pod {PODS} --for=delete --timeout=120s")
    volume.delete()


def train(cluster, manifest, *, timeout):
    """Apply a manifest; return the pods and all that the ranks say, by event."""
    cluster.kubectl(f"create configmap mnist --from-file={TRAINER}")
    cluster.kubectl(f"apply -f {MANIFESTS / 'service.yaml'} -f {MANIFESTS / manifest}")
    cluster.kubectl(f"wait job/mnist --for=condition=Complete --timeout={timeout}s")
    pods = json.loads(cluster.kubectl(f"get pods {PODS} -o json"))["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 4
    log = cluster.kubectl(f"logs {PODS} --tail=-1")
    events = {}
    for line in log.splitlines():
        if line.startswith('{"event"'):
            event = json.loads(line)
            events.setdefault(event["event"], []).append(event)
    return pods, log, events


def check_as_published(events, *, data):
    """Check the network, and the images of a step: 64 of each rank."""
    assert [event["parameters"] for event in events["start"]] == [1_199_882] * 4
    assert [event["batch_size"] for event in events["start"]] == [64] * 4
    steps = -(-data.train_images // 4 // 64)
    assert sorted(event["step"] for event in events["step"] if event["rank"] == 0) == list(range(steps))
    (evaluation,) = events["eval"]
    assert evaluation["images"] == data.test_images
    return evaluation["accuracy"]


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_manifest_trains_mnist_on_four_nodes_to_its_accuracy(volume):
    data = kit.prepare_dataset("mnist", volume=volume)
    _, _, events = train(volume.cluster, "job-cpu.yaml", timeout=720)
    accuracy = check_as_published(events, data=data)
    assert accuracy >= (STAND_IN_ACCURACY if data.synthetic else ACCURACY)
    assert len([event for event in events["step"] if event["rank"] == 0]) == 235, "as published"


@pytest.fixture
def gpu_cluster(state_home):
    """A cluster whose nodes declare a GPU, with label and taint, and with a few images."""
    with kit.create_cluster("local", name="mnist-gpus", nodes=4, gpus=1, labels=LABELS) as cluster:
        shared = cluster.create_volume("shared", size="1Gi")
        data = kit.prepare_dataset("mnist", volume=shared, synthetic=True, limit=FEW)
        cluster.kubectl(f"taint nodes --all {TAINT}")
        yield cluster, data


@pytest.mark.slow
def test_the_manifest_with_gpus_trains_on_nodes_that_are_labelled_tainted_and_declare_gpus(gpu_cluster):
    cluster, data = gpu_cluster
    pods, log, events = train(cluster, "job.yaml", timeout=240)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
    assert limits == [{"nvidia.com/gpu": "1"}] * 4
    check_as_published(events, data=data)
    devices = {event["device"].partition(":")[0]: event["backend"] for event in events["start"]}
    assert devices in ({"cpu": "gloo"}, {"cuda": "nccl"})
    assert ("torch finds no CUDA device: training on CPU with gloo" in log) == ("cpu" in devices)
