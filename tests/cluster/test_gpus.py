"""Where Kubernetes puts pods with GPUs and without: nodes of a cloud with GPUs keep the others off."""

import pytest

import kitlib as kit
from kitlib.errors import RunFailed

from ..patience import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TAINT = "nvidia.com/gpu=present:NoSchedule"
LIMITS = "jsonpath={.items[*].spec.containers[0].resources.limits}"
SEEN = "import os; print(os.environ.get('NVIDIA_VISIBLE_DEVICES'))"


@pytest.fixture(scope="module")
def cluster(state_home):
    """Three nodes that declare a GPU each; two of them take no pod that has none."""
    with kit.create_cluster("local", name="gpu-nodes", nodes=3, gpus=1) as gpu_cluster:
        gpu_cluster.kubectl(f"taint nodes node-1 node-2 {TAINT}")
        yield gpu_cluster


def finish(job, cluster):
    run = kit.launch(job, cluster=cluster, replace=True)
    run.wait(timeout=120)
    return run


@pytest.mark.slow
def test_by_default_each_worker_is_on_a_node_of_its_own_with_a_gpu(cluster, plain):
    run = finish(plain(SEEN, nodes=3, name="with"), cluster)
    assert {pod["node"] for pod in run.pods()} == {"node-0", "node-1", "node-2"}
    limits = cluster.kubectl(f"get pods -l trainyard/run=with -o {LIMITS}")
    assert limits.split() == ['{"nvidia.com/gpu":"1"}'] * 3


def test_workers_without_gpus_do_not_wait_for_nodes_that_keep_them_off(cluster, plain):
    run = finish(plain(SEEN, nodes=3, gpus=0, name="without"), cluster)
    assert {pod["node"] for pod in run.pods()} == {"node-0"}
    assert "void" in run.logs()


def test_more_workers_than_gpus_train_without_and_the_kit_says_so(cluster, plain, caplog):
    job = plain(SEEN, nodes=4, name="more").bind(cluster)
    assert job.gpus == 0
    assert "4 pods train without GPUs: the nodes have 3" in caplog.text


@pytest.mark.parametrize("idle", ["warn", "fail"])
def test_gpus_that_idle_are_said_by_wait_and_watch_or_fail_the_run(idle, cluster, plain, caplog):
    job = plain("import torch\nprint('loss 0.5')", nodes=2, name="idle")
    run = kit.launch(job, cluster=cluster, replace=True, idle_gpus=idle)
    watch = run.watch()
    if idle == "fail":
        with pytest.raises(RunFailed, match="torch finds no CUDA device"):
            run.wait(timeout=240)
        assert run.status.phase == "Failed"
    else:
        run.wait(timeout=240)
        assert "has 1 GPU and trains on the CPU" in caplog.text
    eventually(lambda: ("Failed" in repr(watch), "GPU" in repr(watch)), expected=(idle == "fail", True))


@pytest.mark.slow
@pytest.mark.parametrize("way", [kit.ElasticJob, kit.TorchElastic])
def test_elastic_workers_have_gpus_and_without_cuda_train_on_the_cpu(way, cluster):
    if way is kit.ElasticJob:
        kit.install("elastic-job", cluster=cluster)
    job = way("trainers/digits_elastic.py", nodes=2, min_nodes=1, args={"epochs": 1}, name="elastic")
    run = finish(job, cluster)
    limits = cluster.kubectl(f"get pods -l trainyard/run=elastic,trainyard/role!=store -o {LIMITS}")
    assert set(limits.split()) == {'{"nvidia.com/gpu":"1"}'}
    assert "torch finds no CUDA device: training on CPU with gloo" in run.logs()
    assert set(run.metrics("start").backend) == {"gloo"}
