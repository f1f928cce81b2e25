"""The Training Operator, built from its Go module, with its own manifests as they are: a PyTorchJob runs."""

import pytest

from localkube.controlplane import programs

from .clusters import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.long]

TRAINER = """
import torch, torch.distributed as d
d.init_process_group("gloo")
total = torch.ones(1)
d.all_reduce(total)
print("rank", d.get_rank(), "of", d.get_world_size(), "sum", int(total))
d.destroy_process_group()
"""


@pytest.fixture(scope="module")
def training_operator(cluster):
    """The operator as a Deployment; the first time, its program is built, which takes a minute or two."""
    (recipe,) = programs.obtain(["training-operator"], report=print)
    manifests = str(recipe.folder / "manifests" / "overlays" / "standalone")
    # Server-side: the definition of a PyTorchJob is too long for the annotation of a plain apply.
    cluster.kubectl("apply", "--server-side", "-k", manifests)
    cluster.kubectl(
        "rollout", "status", "-n=kubeflow", "deployment/training-operator", f"--timeout={PATIENCE}s"
    )
    # It is ready before its webhook listens.
    eventually(lambda: _dry_run(cluster), wanted="")
    yield
    cluster.kubectl("delete", "-k", manifests, "--timeout=120s")


def _dry_run(cluster) -> str:
    """Return what speaks against creating a PyTorchJob."""
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=pytorch_job("probe"))
    except AssertionError as error:
        return str(error)
    return ""


def pytorch_job(name: str) -> dict:
    """Return a PyTorchJob of one master and one worker."""
    container = {"name": "pytorch", "image": "pytorch/pytorch:2.15.0", "command": ["python", "-c", TRAINER]}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
    }


@pytest.mark.timeout(900)
def test_a_pytorch_job_of_a_master_and_a_worker_trains(cluster, training_operator):
    cluster.kubectl("apply", "-f", "-", stdin=pytorch_job("pair"))
    cluster.kubectl("wait", "--for=condition=Succeeded", "pytorchjob/pair", "--timeout=120s")
    written = [cluster.kubectl("logs", f"pair-{role}-0", "-c", "pytorch") for role in ("master", "worker")]
    assert written == ["rank 0 of 2 sum 2\n", "rank 1 of 2 sum 2\n"]
    cluster.kubectl("delete", "pytorchjob/pair")


def test_the_operators_webhook_refuses_a_job_that_cannot_run(cluster, training_operator):
    wrong = pytorch_job("wrong")
    del wrong["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["image"]
    with pytest.raises(AssertionError, match="denied the request"):
        cluster.kubectl("create", "-f", "-", stdin=wrong)
