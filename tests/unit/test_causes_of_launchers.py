"""Runs whose torchrun was called so that its nodes cannot meet, from the pods' commands alone."""

import pytest

from kitlib.causes import Facts, causes
from kitlib.causes.rules.launchers import RULES

from . import objects


def pod(rank, *flags, env=()):
    command = ["torchrun", *flags, "train.py", "--epochs=3"]
    variables = [{"name": name, "value": value} for name, value in dict(env).items()]
    labels = {"batch.kubernetes.io/job-completion-index": str(rank)}
    containers = [{"name": "pytorch", "command": command, "env": variables}]
    return objects.pod(f"x-{rank}", containers=containers, labels=labels, status={"podIP": f"10.0.0.{rank}"})


def lines(*pods, main=None, phase="Running"):
    main = main or {"kind": "Job", "metadata": {"name": "x"}, "spec": {"completions": 2}}
    return [cause.line for cause in causes(Facts(main=main, pods=pods, phase=phase), RULES)]


NODES = "torchrun of rank 0 waits for 3 nodes (--nnodes=3), and the run has 2 pods"
ROWS = {
    "more nodes": ([("--nnodes=3",), ("--nnodes=3",)], {}, NODES),
    "more nodes, with a blank": ([("--nnodes 3",), ("--nnodes 3",)], {}, NODES),
    "more nodes in the environment": ([(), ()], {"PET_NNODES": "3"}, NODES),
    "more nodes at least": (
        [("--nnodes=3:4",), ("--nnodes=3:4",)],
        {},
        "torchrun of rank 0 waits for 3 nodes (--nnodes=3:4), and the run has 2 pods",
    ),
    "one node rank": (
        [("--nnodes=2", "--node-rank=0"), ("--nnodes=2", "--node_rank=0")],
        {},
        "torchrun of rank 0 has the same --node-rank=0 as that of rank 1",
    ),
    "nobody's address": (
        [("--nnodes=2", "--master-addr=$(MASTER_ADDR)")] * 2,
        {"MASTER_ADDR": "10.244.77.7"},
        "torchrun of rank 0 looks for rank 0 at 10.244.77.7, which is the address of no pod of the run",
    ),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_the_reason_for_a_failed_rendezvous_of_torchrun_is_named(row, phase):
    flags, env, line = ROWS[row]
    assert lines(*(pod(rank, *words, env=env) for rank, words in enumerate(flags)), phase=phase) == [line]


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (["--nnodes=2", "--node-rank=$(JOB_COMPLETION_INDEX)", "--master-addr=x-0.x"], {}),
        (["--nnodes=1:4"], {"PET_NNODES": "3"}),
        (["--nnodes=2", "--master-addr=10.0.0.0"], {}),
        (["--nnodes=2", "--master-addr=127.0.0.1"], {}),
        ([], {}),
    ],
)
def test_a_call_that_is_right_is_no_cause(flags, env):
    assert lines(pod(0, *flags, env=env), pod(1, *flags, env=env)) == []


def test_an_elastic_run_below_its_minimum_says_how_many_it_has():
    notes = {"trainyard/replicas": "3", "trainyard/min-replicas": "2", "trainyard/max-replicas": "4"}
    main = {"kind": "PodTemplate", "metadata": {"name": "x", "annotations": notes}}
    worker = objects.pod("x-0", labels={"trainyard/worker": "0"})
    (line,) = lines(worker, main=main, phase="Pending")
    assert line.startswith("PodTemplate x has 1 workers, and needs at least 2")
    assert lines(worker, worker, main=main, phase="Pending") == []
