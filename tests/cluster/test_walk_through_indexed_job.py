"""The walk-through on Indexed Jobs, by kubectl alone: MNIST on four pods, one epoch, to its accuracy."""

import json
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests" / "gke-indexed-job"
ACCURACY, STAND_IN_ACCURACY = 0.97, 0.9  # the second on drawn images, where the real ones cannot be had

# What GKE puts on nodes with GPUs.
LABELS, TAINT = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "nvidia.com/gpu=present:NoSchedule"
QUICK = """import json, os
print(json.dumps({"event": "start", "rank": int(os.environ["RANK"])}))
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def mnist(local_cluster):
    """MNIST on the volume ``shared``; all is deleted afterwards."""
    volume = local_cluster.create_volume("shared")
    yield kit.prepare_dataset("mnist", volume=volume)
    local_cluster.kubectl("delete job,service,configmap mnist --ignore-not-found --wait")
    local_cluster.kubectl("wait pod -l batch.kubernetes.io/job-name=mnist --for=delete --timeout=120s")
    volume.delete()


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_manifest_trains_mnist_on_four_nodes_to_its_accuracy(mnist, local_cluster):
    local_cluster.kubectl(f"create configmap mnist --from-file={ROOT / 'trainers' / 'digits_ddp.py'}")
    local_cluster.kubectl(f"apply -f {MANIFESTS / 'service.yaml'} -f {MANIFESTS / 'job-cpu.yaml'}")
    local_cluster.kubectl("wait job/mnist --for=condition=Complete --timeout=480s")
    shown = local_cluster.kubectl("get pods -l batch.kubernetes.io/job-name=mnist -o json")
    assert len({pod["spec"]["nodeName"] for pod in json.loads(shown)["items"]}) == 4
    first = "batch.kubernetes.io/job-name=mnist,batch.kubernetes.io/job-completion-index=0"
    written = local_cluster.kubectl(f"logs -l {first} --tail=-1")
    events = [json.loads(line[line.index("{") :]) for line in written.splitlines() if '{"event"' in line]
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    assert evaluation["images"] == mnist.test_images
    assert evaluation["accuracy"] >= (STAND_IN_ACCURACY if mnist.synthetic else ACCURACY)


@pytest.fixture
def gpu_cluster(state_home):
    """A cluster whose nodes declare a GPU, with label and taint."""
    with kit.create_cluster("local", name="mnist-gpus", nodes=4, gpus=1, labels=LABELS) as cluster:
        cluster.create_volume("shared", size="1Gi")
        cluster.kubectl(f"taint nodes --all {TAINT}")
        yield cluster


def test_the_manifest_runs_on_nodes_that_are_labelled_tainted_and_have_gpus(gpu_cluster, tmp_path):
    (tmp_path / "digits_ddp.py").write_text(QUICK)
    gpu_cluster.kubectl(f"create configmap mnist --from-file={tmp_path / 'digits_ddp.py'}")
    gpu_cluster.kubectl(f"apply -f {MANIFESTS / 'service.yaml'} -f {MANIFESTS / 'job.yaml'}")
    gpu_cluster.kubectl("wait job/mnist --for=condition=Complete --timeout=120s")
    shown = gpu_cluster.kubectl("get pods -l batch.kubernetes.io/job-name=mnist -o json")
    pods = json.loads(shown)["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 4
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
    assert limits == [{"nvidia.com/gpu": "1"}] * 4
    logs = gpu_cluster.kubectl("logs -l batch.kubernetes.io/job-name=mnist").splitlines()
    assert sorted(json.loads(line)["rank"] for line in logs if line.startswith("{")) == [0, 1, 2, 3]
