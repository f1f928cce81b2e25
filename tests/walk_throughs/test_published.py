"""The YAML of the published pages, filled in by sed, on a local cluster; and the lines that they print.

Images are those of the pages: the kit's environment stands in for them, with programs of the same names.
"""

import re
import subprocess

import pytest

import kitlib as kit

from ..unit.small_data import write_cifar10
from .pages import manifest, printed

# What the providers put on the nodes of the pages.
LABELS = {
    "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
    "beta.kubernetes.io/instance-type": "c5.4xlarge",
}
NUMBER = r"-?\d+(?:\.\d+)?"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(state_home):
    with kit.create_cluster("local", name="published", nodes=4, labels=LABELS) as cluster:
        yield cluster


@pytest.fixture
def apply(cluster, tmp_path):
    """Fill in a page's manifest by sed, and apply it; its objects are deleted afterwards."""
    paths = []

    def fill(text, *expressions):
        words = [word for expression in ("", *expressions) for word in ("-e", expression)]
        done = subprocess.run(["sed", *words], input=text, capture_output=True, text=True, check=True)
        paths.append(tmp_path / f"{len(paths)}.yaml")
        paths[-1].write_text(done.stdout)
        return cluster.kubectl(f"apply -f {paths[-1]}")

    yield fill
    for path in reversed(paths):
        cluster.kubectl(f"delete --ignore-not-found -f {path}")


def same_shape(log, line):
    """Whether a log has a line that differs from the page's in its numbers alone."""
    words = [re.escape(part) for part in re.split(NUMBER, re.sub(r"\s+", " ", line.strip()))]
    return re.search(NUMBER.join(words), re.sub(r"[ \t]+", " ", log)) is not None


@pytest.mark.slow
@pytest.mark.long
def test_the_indexed_job_of_the_page_trains_on_four_nodes_and_prints_its_lines(cluster, apply):
    page = "gke-indexed-job"
    apply(manifest(page, "pytorchworker"), "s/<PROJECT_ID>/my-project/")
    cluster.kubectl("wait job/pytorchworker --for=condition=Complete --timeout=900s")
    pods = cluster.kubectl("get pods -l job-name=pytorchworker -o jsonpath={.items[*].metadata.name}").split()
    assert sorted(re.sub(r"-\w+$", "", pod) for pod in pods) == [
        f"pytorchworker-{index}" for index in range(4)
    ]
    log = cluster.kubectl(f"logs {sorted(pods)[1]}")
    lines = printed(page, r"^Train Epoch|^Test set|^\d+it |^\+ torchrun|^INFO:torch.*(Done waiting|finished)")
    exact = [line for line in lines if line.startswith("+ torchrun")]
    assert exact[0].strip() in log
    for line in lines[1:]:
        head = re.sub(r"^INFO:[\w.]+:(\[default\] )?", "", line)  # torch has another logger today
        head = head.replace("(SUCCEEDED)", "(WorkerState.SUCCEEDED)")
        assert same_shape(log, head), line
    for start in ("Train Epoch: 1 [64/60000 (0%)]", "[14912/60000 (99%)]", "[5616/60000 (100%)]", "235it "):
        assert start in log
    assert "/10000 (" in log


@pytest.mark.slow
@pytest.mark.long
def test_the_elastic_job_and_the_test_of_the_page_train_and_test_on_its_claim(cluster, apply, tmp_path):
    page = "eks-distributed-training-workshop"
    volume = cluster.create_volume("efs-pvc")
    write_cifar10(tmp_path / "cifar10")
    volume.upload(tmp_path / "cifar10" / "cifar-10-batches-py")
    kit.install("elastic-job", cluster=cluster)
    etcd = (kit.config.manifests("torch-elastic-eks", "etcd.yaml")).read_text()
    apply(etcd, "0,/name: etcd/s//name: etcd-service/")
    try:
        sizes = ("s/cpu: 32/cpu: 1/", "s/--epochs=10/--epochs=2/", "s/--batch-size=128/--batch-size=4/")
        assert "elasticjob.elastic.pytorch.org/cifar10-train created" in apply(
            manifest(page, "kind: ElasticJob"), *sizes
        )
        cluster.kubectl("wait elasticjob/cifar10-train --for=condition=Succeeded --timeout=400s")
        logs = [cluster.kubectl(f"logs cifar10-train-worker-{index}") for index in range(2)]
        for log in logs:
            assert "reading /efs-shared/cifar-10-batches-py/\n" in log
            assert re.search(r"^\[1,     5\] loss: \d\.\d{3}$", log, re.MULTILINE)
            assert log.index("saving model: /efs-shared/cifar10-model.pth") < log.index("Finished Training")
        assert "job.batch/cifar10-test created" in apply(manifest(page, "name: cifar10-test"))
        cluster.kubectl("wait job/cifar10-test --for=condition=Complete --timeout=300s")
        log = cluster.kubectl("logs job/cifar10-test")
        for line in printed(page, r"^reading /efs|^loading model|^Accuracy of|^Finished Testing"):
            assert same_shape(log, line), line
    finally:
        cluster.kubectl("delete elasticjob cifar10-train --ignore-not-found --cascade=foreground")
        kit.uninstall("elastic-job", cluster=cluster)


def test_the_pods_and_the_service_of_elasticdls_page_run_on_its_claim(cluster, apply, tmp_path):
    page = "elasticdl-gke"
    cluster.create_volume("fileserver-claim")
    for word in ("name: high", "name: low"):
        apply(manifest(page, "kind: PriorityClass", word))
    apply(manifest(page, "name: my-pod"))
    cluster.kubectl("wait pod/my-pod --for=condition=Ready --timeout=120s")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train").write_text("records")
    cluster.kubectl(f"cp {tmp_path / 'mnist'} my-pod:/data")
    assert cluster.kubectl("exec my-pod -- cat /data/mnist/train") == "records"
    apply(manifest(page, "test-nginx"), "s/cpu: 2$/cpu: 100m/", "s/2048Mi/64Mi/")
    cluster.kubectl("rollout status deployment test-nginx --timeout=120s")
    scaled = cluster.kubectl("scale deployment.v1.apps/test-nginx --replicas=1")
    assert "deployment.apps/test-nginx scaled" in scaled
