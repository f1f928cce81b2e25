"""Hangs of real ranks that `kit.torchrun` starts: which rank, in which collective, is named."""

import re

import pytest

import kitlib as kit

from ..patience import until
from ..rows import slow

PROGRAM = "tests/hanging_ranks.py"
ROWS = {
    "other-op": (
        "CollectiveMismatch",
        "rank 2 is in broadcast #4 of FILE; ranks 0, 1 are in all_reduce #4 of FILE",
    ),
    "extra-barrier": (
        "CollectiveMismatch",
        "rank 2 is in barrier #4 of FILE; ranks 0, 1 are in all_reduce #4 of FILE",
    ),
    "only-rank-0": (
        "CollectiveMismatch",
        "rank 0 is in all_reduce #4 of FILE; ranks 1, 2 are in barrier #4 of FILE",
    ),
    "swallowed": (
        "CollectiveMismatch",
        "rank 2 is in barrier #4 of FILE; ranks 0, 1 are in all_reduce #4 of FILE",
    ),
    "sub-group": (
        "OtherCollective",
        "rank 0 is in barrier #4 of FILE; ranks 1, 2 are in all_reduce #4 of group pairs of FILE",
    ),
    "group-order": (
        "OtherCollective",
        "rank 1 is in all_reduce #4 of group pairs of FILE; ranks 0, 2 are in all_reduce #4 of FILE",
    ),
    "send-alone": ("PointToPoint", "rank 2 is in send of FILE; ranks 0, 1 are in barrier #4 of FILE"),
    "all-receive": ("PointToPoint", "3 ranks all are in recv of FILE, and none sends"),
    "waits-for-a-queue": (
        "MissingCollective",
        "rank 2 waits in FILE, and has not called barrier #4; ranks 0, 1 are in barrier #4 of FILE",
    ),
    "sleeps": (
        "Straggler",
        "rank 2 sleeps (time.sleep) in FILE; ranks 0, 1 are in barrier #4 of FILE, and wait for it",
    ),
    "computes": ("Straggler", "rank 2 still computes (CPU of a core) in FILE; ranks 0, 1 are in barrier #4"),
    "stops": ("Paused", "rank 2 is paused (SIGSTOP): the others wait for it"),
    "comes-late": ("NotJoined", "rank 2 sleeps (time.sleep), and has not joined yet: 2 of 3 ranks wait"),
    "leaves-before": ("NotJoined", "rank 2 has no process: it ended with exit code 0, or never started"),
    "other-port": ("MasterAddress", "rank 2 is in init_process_group, and finds no store of rank 0 at "),
    "other-rank": ("WorldSize", "rank 2 is in init_process_group as rank 0, which another process has"),
    "larger-world": (
        "WorldSize",
        "ranks 0 to 2 are in init_process_group for a world size of 4, and the run has 3 ranks",
    ),
    "one-larger-world": (
        "WorldSize",
        "rank 2 is in init_process_group for a world size of 4, and the run has 3 ranks",
    ),
    "slow": ("SlowRank", "rank 2 is slow: the others wait for it"),
}
FIRST = "only-rank-0"


def named(diagnosis):
    """The first cause without lines and shares; while ranks still come, it is of those."""
    written = re.sub(r"hanging_ranks\.py:\d+", "FILE", diagnosis.line)
    return re.sub(r"\d+% of a core", "CPU of a core", written)


@pytest.mark.parametrize("way", [FIRST, *slow(*(way for way in ROWS if way != FIRST))])
def test_the_rank_that_holds_up_the_others_is_named(way):
    kind, line = ROWS[way]
    run = kit.torchrun(PROGRAM, processes_per_node=3, args=[way])
    try:
        until(lambda: str(run.logs()).count("ready") == 3)
        hang_after = 600 if way == "slow" else 1
        until(lambda: named(run.why(hang_after=hang_after)).startswith(line))
        assert run.why(hang_after=hang_after).first.kind == kind
    finally:
        run.delete()


@pytest.mark.slow  # cluster/test_causes_of_ranks.py has such a run of pods
def test_a_run_that_steps_has_no_cause():
    run = kit.torchrun(PROGRAM, processes_per_node=2, args=["well"])
    try:
        until(lambda: str(run.logs()).count("step") > 20)
        diagnosis = run.why()
        assert not diagnosis
        assert [state.rank for state in diagnosis.ranks] == [0, 1]
        assert all(state.collectives for state in diagnosis.ranks)
    finally:
        run.delete()
