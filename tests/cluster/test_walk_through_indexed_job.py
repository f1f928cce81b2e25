"""The walk-through on Indexed Jobs, its manifest for GPUs as shipped: MNIST on four pods, one epoch."""

import json
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests" / "gke-indexed-job"
FEW = 1000  # images, for four steps of four ranks

# What GKE puts on nodes with GPUs.
LABELS, TAINT = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "nvidia.com/gpu=present:NoSchedule"
PODS = "-l batch.kubernetes.io/job-name=mnist"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def gpu_cluster(state_home):
    """A cluster whose nodes declare a GPU, with label and taint, and with a few images."""
    with kit.create_cluster("local", name="mnist-gpus", nodes=4, gpus=1, labels=LABELS) as cluster:
        shared = cluster.create_volume("shared", size="1Gi")
        data = kit.prepare_dataset("mnist", volume=shared, synthetic=True, limit=FEW)
        cluster.kubectl(f"taint nodes --all {TAINT}")
        yield cluster, data


@pytest.mark.slow
def test_the_manifest_with_gpus_trains_on_nodes_that_declare_gpus(gpu_cluster):
    cluster, data = gpu_cluster
    kubectl = cluster.kubectl
    kubectl(f"create configmap mnist --from-file={ROOT / 'trainers' / 'digits_ddp.py'}")
    kubectl(f"apply -f {MANIFESTS / 'service.yaml'} -f {MANIFESTS / 'job.yaml'}")
    kubectl("wait job/mnist --for=condition=Complete --timeout=240s")
    pods = json.loads(kubectl(f"get pods {PODS} -o json"))["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 4
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
    assert limits == [{"nvidia.com/gpu": "1"}] * 4
    log = kubectl(f"logs {PODS} --tail=-1")
    events = [json.loads(line) for line in log.splitlines() if line.startswith('{"event"')]
    starts = [event for event in events if event["event"] == "start"]
    assert [(event["parameters"], event["batch_size"]) for event in starts] == [(1_199_882, 64)] * 4
    steps = [event["step"] for event in events if (event["event"], event["rank"]) == ("step", 0)]
    assert sorted(steps) == list(range(-(-data.train_images // 4 // 64)))
    assert [event["images"] for event in events if event["event"] == "eval"] == [data.test_images]
    devices = {event["device"].partition(":")[0]: event["backend"] for event in starts}
    assert devices in ({"cpu": "gloo"}, {"cuda": "nccl"})
    assert ("torch finds no CUDA device: training on CPU with gloo" in log) == ("cpu" in devices)
