"""GPUs that several pods share, and how busy they are, as the views show it of a program that does not tell.

The driver's library is a stub with one GPU, all else is real; `make gpu` does the same where there is one.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.widgets.gpu_reader import GpuReader

from ..patience import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
STUB = Path(__file__).parent / "nvml_stub.c"
TRAINER = """
import time
for step in range(600):
    print(f"step {step} loss {1 / (1 + step):.4f}", flush=True)
    time.sleep(0.1)
"""
SEEN = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('NVIDIA_VISIBLE_DEVICES'))"


@pytest.fixture(scope="module")
def cluster(state_home, tmp_path_factory):
    """Two nodes that share the stub's GPU."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stub of NVML needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, STUB], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))
        with kit.create_cluster("local", name="busy", nodes=2, gpus=1, warm=False) as gpu_cluster:
            yield gpu_cluster


def test_one_gpu_is_offered_by_two_nodes_and_their_labels_say_that_it_is_shared(cluster):
    for node in cluster.kube.get_all("Node"):
        labels = node["metadata"]["labels"]
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"
        assert labels["nvidia.com/gpu.product"] == "NVIDIA-Stub-80-GB-SHARED"
        assert labels["nvidia.com/gpu.memory"] == "81920"
        assert labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


def test_both_views_show_how_busy_the_gpu_is_of_a_program_that_does_not(cluster, plain):
    run = kit.launch(plain(TRAINER, nodes=2, name="stranger", gpus=1), cluster=cluster)
    watch, nodes = run.watch(), cluster.watch(minutes=5)
    eventually(lambda: dict(watch.facts()["figures"]).get("GPU"), expected="64 %")
    assert dict(watch.facts()["figures"])["GPU memory"] == "3.0 GiB"
    eventually(lambda: bool(watch.training.frame().gpu.size))
    eventually(lambda: {row[4] for row in nodes.nodes}, expected={"1 of 1 requested; 64 %, 3.0 of 80.0 GiB"})
    read = GpuReader(cluster.kube).read(["node-0", "node-1"])
    pods = {sample.pod for samples in read.values() for sample in samples}
    assert pods == {pod["pod"] for pod in run.pods()}
    watch.stop()
    nodes.stop()
    run.delete()


def test_the_pods_have_the_same_gpu_by_its_uuid_and_one_without_has_none(cluster, plain):
    for gpus, expected in ((1, "GPU-00000000-1111-2222-3333-444444444444"), (0, "void")):
        run = kit.launch(plain(SEEN, nodes=2, name="seen", gpus=gpus), cluster=cluster, replace=True)
        run.wait(timeout=120)
        assert [line.split()[-1] for line in str(run.logs()).splitlines()] == [expected] * 2
