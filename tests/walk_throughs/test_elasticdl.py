"""The commands of ElasticDL's walk-through as published, in a shell, on a cluster with room for them."""

import re

import pytest

import kitlib as kit

from ..patience import until
from .pages import commands, manifest, shell_in

PAGE = "elasticdl-gke"
(TRAIN,) = commands(PAGE, "elasticdl train")
LATER = r"""
elasticdl {command} --job_name={command}-mnist --num_workers=1 \
  --checkpoint_dir_for_init={place} --{data}=/data/mnist/test \
  --model_zoo=model_zoo --model_def=mnist_functional_api.mnist_functional_api.custom_model \
  --volume="mount_path=/data,claim_name=fileserver-claim"
"""
PODS = ["master", "ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(state_home):
    """A cluster whose nodes claim to have room for nine pods of two cores: two more than the job's."""
    with kit.create_cluster("local", name="zoo", nodes=3, cpus=6, memory="8Gi") as cluster:
        yield cluster


@pytest.fixture
def shell(cluster, tmp_path):
    """Run lines in a shell in the folder of the model zoo; return what they write."""
    zoo = tmp_path / "model_zoo"
    zoo.mkdir()
    return shell_in(zoo, cluster.name, PROJECT_ID="my-project")


@pytest.fixture(scope="module")
def claim(cluster):
    """The claim of the walk-through."""
    return cluster.create_volume("fileserver-claim")


@pytest.fixture(scope="module")
def data(claim):
    """Images on the claim, few, but enough for an evaluation after 200 of 375 minibatches."""
    return kit.prepare_dataset("mnist", volume=claim, synthetic=True, limit=4800, records=True)


@pytest.fixture
def all_images(claim):
    """As many images as the page's: its five epochs last longer than what is done to its workers."""
    return kit.prepare_dataset("mnist", volume=claim, synthetic=True, records=True)


@pytest.fixture
def train(cluster, shell):
    """Run the page's training command, as it is printed, where no job of its name is left."""
    cluster.delete_run("test-mnist")
    shell("elasticdl zoo init")
    shell(TRAIN)
    return cluster.run("test-mnist")


def running(shell, job):
    listed = shell(f"kubectl get pods -l elasticdl-job-name={job}")
    return re.findall(rf"^elasticdl-{job}-(\S+)", listed, re.MULTILINE)


def test_the_published_commands_train_evaluate_and_predict(cluster, data, shell, train):
    next(line for line in train.logs(rank="worker-0", follow=True) if "Loss = " in line)
    assert running(shell, "test-mnist") == PODS
    assert "Loss = " in shell('kubectl logs elasticdl-test-mnist-worker-0 | grep "Loss"')

    shell("kubectl delete pod elasticdl-test-mnist-worker-0")
    shell("kubectl wait --for=create pod/elasticdl-test-mnist-worker-4 --timeout=60s")
    train.wait(timeout=600)
    assert running(shell, "test-mnist") == [pod for pod in PODS if pod != "worker-0"] + ["worker-4"]
    log = shell('kubectl logs elasticdl-test-mnist-master | grep "Evaluation"')
    steps = [int(match) for match in re.findall(r"Evaluation at step (\d+): accuracy = ", log)]
    assert 200 <= steps[0] < steps[-1] == 375
    priority = "kubectl get pod elasticdl-test-mnist-worker-1 -o jsonpath={.spec.priorityClassName}"
    assert shell(priority) == "low"

    # A checkpoint may lack the last updates, so the accuracy may be another one.
    places = {"place": "/data/parameter-server/test-mnist"}
    shell(LATER.format(command="evaluate", data="validation_data", **places))
    cluster.run("evaluate-mnist").wait(timeout=300)
    (judged,) = shell('kubectl logs elasticdl-evaluate-mnist-master | grep "Evaluation"').splitlines()
    assert f"images = {data.test_images}" in judged
    shell(LATER.format(command="predict", data="prediction_data", **places))
    cluster.run("predict-mnist").wait(timeout=300)
    counts = re.findall(r"by class: \[(.*)\]", shell("kubectl logs elasticdl-predict-mnist-worker-0"))
    assert sum(int(word) for line in counts for word in line.split(", ")) == data.test_images


def test_a_deleted_master_is_replaced_by_its_job_and_the_run_goes_on(data, shell, train):
    next(line for line in train.logs(rank="worker-0", follow=True) if "Loss = " in line)
    shell("kubectl delete pod elasticdl-test-mnist-master")
    train.wait(timeout=600)
    (master,) = (line for line in running(shell, "test-mnist") if line.startswith("master"))
    assert re.fullmatch(r"master-\w{5}", master)
    closed = train.metrics("epoch")
    assert set(closed.records) == {data.train_images} and len(train.metrics("resume")) == 1


def test_a_service_of_high_priority_preempts_three_workers(all_images, shell, train, tmp_path):
    (tmp_path / "model_zoo" / "nginx.yaml").write_text(manifest(PAGE, "test-nginx"))

    def phases(name):
        listed = shell(f"kubectl get pods --no-headers | grep {name} || true").splitlines()
        return sorted(line.split()[2] for line in listed)

    until(lambda: phases("test-mnist-worker") == ["Running"] * 4, "four workers")
    shell(*commands(PAGE, "kubectl create -f nginx.yaml"))
    until(lambda: phases("test-nginx") == ["Running"] * 5, "the service")
    until(lambda: phases("test-mnist-worker") == ["Pending"] * 3 + ["Running"], "one worker to go on")
    shell(*commands(PAGE, "kubectl scale"))
    until(lambda: phases("test-mnist-worker") == ["Running"] * 4, "four workers again")
    assert not train.status.finished, "the page's epochs are over"
    train.delete()
    shell("kubectl delete -f nginx.yaml")
