"""Replica groups of torchft itself: one is killed, the other trains on, and both come to the end."""

import sys
from pathlib import Path

import pytest

import kitlib as kit
from bench.torchft import install

from ..patience import until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # what the pods get: unit/test_torchft.py


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Have torchft importable here, and so in local pods."""
    folder = install(tmp_path_factory.mktemp("packages"))
    sys.path.append(str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.mark.usefixtures("packages")
def test_a_replica_group_is_killed_and_comes_back_with_the_weights_of_the_other(launch):
    program = ROOT / "notebooks" / "scripts" / "digits_torchft.py"
    run = launch(kit.TorchFT(program, nodes=2, args={"steps": 600, "step-seconds": 0.1}))

    def sizes(rank):
        steps = run.metrics("step")
        return [] if steps.empty else steps[steps["rank"] == rank].world_size.tolist()

    until(lambda: sizes(0)[-5:] == [2] * 5, "the groups to train together")
    assert not run.why().causes
    run.kill(rank=1)
    until(lambda: sizes(0)[-1] == 1, "the survivor to train alone")
    assert [pod["pod"] for pod in run.pods()] == [f"{run.name}-0", f"{run.name}-1"]
    run.wait(timeout=180)
    assert sizes(0)[-1] == sizes(1)[-1] == 2
    tests = run.metrics("eval")
    assert tests.accuracy.nunique() == 1 and tests.accuracy.min() > 0.9, tests
