"""Our commands in docs/walk-throughs.md, in a shell from top to bottom, those that take minutes."""

import pytest

import kitlib as kit

from .pages import shell_in
from .tables import ours, tables

# What a reader looks for in what the commands print, one after the other.
SEEN = {
    "GKE Indexed Job": ["job.batch/mnist created", "job.batch/mnist condition met", '"accuracy"'],
    "Kubeflow PyTorchJob": ["1/1", "torchrun-cpu created", "condition met", '"world_size":4', "deleted"],
    "EKS distributed training workshop": [
        "job.batch/prepare-cifar10 condition met",
        "elasticjob.elastic.pytorch.org/cifar10-train created",
        "cifar10-train-worker-1",
        *("CPU(cores)", "cifar10-train condition met"),
        'elasticjob.elastic.pytorch.org "cifar10-train" deleted',
        "job.batch/cifar10-test condition met",
        *("Accuracy of the network on the", "Accuracy for class:"),
        'job.batch "cifar10-test" deleted',
    ],
    # What is "the same" there is run by test_elasticdl.
    "ElasticDL on GKE": ["high created", "train", "test-nginx created", "test-nginx scaled"],
    "TorchElastic on EKS": ["imagenet-worker-2 created", '"event":"step"', '"imagenet-worker-1" deleted'],
}

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture
def shell(state_home, tmp_path):
    """Run a command in a folder with the kit's; return what it writes. The cluster is deleted at the end."""
    for name in ("manifests", "trainers", "programs"):
        (tmp_path / name).symlink_to(kit.config.DATA / name)
    yield shell_in(tmp_path, "demo")
    kit.clusters.LocalCluster("demo").delete()


@pytest.mark.parametrize("title", SEEN)
def test_our_commands_of_a_walk_through_run_from_top_to_bottom(title, shell):
    written = ""
    for row in tables()[title]:
        for command in ours(row[1], cloud=False, quick=True):
            written += shell(command)
    place = 0
    for words in SEEN[title]:
        assert words in written[place:], f"{words}\n{written[place:]}"
        place = written.index(words, place) + len(words)
