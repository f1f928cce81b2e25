"""How a rank ends, in each kind of job: the causes of `causes/ranks.yaml` of a PyTorchJob, a TrainJob, an
elastic run and torchrun here, named by ``run.why()``. All kinds share one cluster, with the operators.
"""

import secrets
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

import kitlib as kit
from kitlib.errors import RunFailed

from .test_causes_of_ranks import PROGRAM, ROWS

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]
WAYS = ("memory", "kill", "segv", "exit", "message", "colours", "import", "raise", "shape", "loader", "nan")
KINDS = {"PyTorchJob": kit.PyTorchJob, "TrainJob": kit.TrainJob, "TorchElastic": kit.TorchElastic}
ENDINGS = {row["name"]: row for row in ROWS}
# Nothing limits the memory of processes of this machine.
RUNS = [pair for pair in product([*KINDS, "torchrun"], WAYS) if pair != ("torchrun", "memory")]


@pytest.fixture(scope="module")
def cluster(own_cluster):
    """A cluster of this module's own, with the operators."""
    kit.install("training-operator", cluster=own_cluster)
    kit.install("trainer", cluster=own_cluster)
    return own_cluster


def launch(cluster, kind, way, *, restarts=0):
    """Start two ranks of a kind; of an elastic run, the launcher starts a rank again so many times."""
    name = f"{way}-{secrets.token_hex(2)}"
    if kind == "torchrun":
        return kit.torchrun(PROGRAM, processes_per_node=2, args=[way], name=name)
    job = KINDS[kind](PROGRAM, nodes=2, args=[way], name=name, memory="700Mi", cpu="0.3")
    if kind == "TorchElastic":
        limit = [{"name": "worker", "env": [{"name": "PET_MAX_RESTARTS", "value": str(restarts)}]}]
        job = job.patch({"template": {"spec": {"containers": limit}}})
    return kit.launch(job, cluster=cluster)


@pytest.fixture(scope="module")
def causes(cluster):
    """The first cause of each run, by its kind and way; three run at a time."""

    def diagnose(pair):
        run = launch(cluster, *pair)
        with pytest.raises(RunFailed):
            run.wait(timeout=300)
        cause = run.why().first
        run.delete()
        return pair, cause

    with ThreadPoolExecutor(3) as pool:
        return dict(pool.map(diagnose, RUNS))


@pytest.mark.parametrize(("kind", "way"), RUNS)
def test_the_rank_and_its_end_are_named_in_each_kind_of_job(causes, kind, way):
    cause, row = causes[kind, way], ENDINGS[way]
    assert (cause.who, cause.kind) == (row["who"], row["kind"])
    assert row["says"] in f"{cause.line} {cause.detail}"
