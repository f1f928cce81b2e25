"""Which rank holds up the others, from what their processes do."""

import json

import pytest

from kitlib.causes import Facts, causes
from kitlib.causes.processes import Frame, Joining, RankState, read_states
from kitlib.causes.rules.hangs import RULES
from kitlib.display.tracebacks import Line
from kitlib.runs.diagnosis import unread_of

FUTEX = "futex_do_wait"


def stack(collective, line):
    """Return the stack of a rank in a collective."""
    torch = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    return (
        Frame("wait", torch, 99),
        Frame(collective, torch, 4181),
        Frame("train", "/trainyard/trainer/train.py", line),
        Frame("<module>", "/trainyard/trainer/train.py", 90),
    )


def state(number, word="S", cpu=0.0, helpers=(), **more):
    return RankState(number, 10 + number, word, cpu, dict(helpers), **({"waits": FUTEX} | more))


def causes_of(*processes, phase="Running", **more):
    return causes(Facts(processes=processes, phase=phase, hang_seconds=90, **more), RULES)


ROWS = {
    "paused": ([state(0), state(1, "T")], "Paused", "rank 1 is paused (SIGSTOP): the others wait for it"),
    "computes": ([state(0), state(1, "R", 0.98)], "Straggler", "rank 1 still computes (98% of a core)"),
    "computes with a small limit": ([state(0, cpu=0.01), state(1, "R", 0.17)], "Straggler", "rank 1 still"),
    "sleeps": ([state(0), state(1, waits="hrtimer_nanosleep")], "Straggler", "rank 1 sleeps (time.sleep)"),
    "data loader": (
        [state(0), state(1, helpers={40: "T"})],
        "DataLoader",
        "rank 1 waits for its data loader: ",
    ),
    "dead data loader": ([state(0, helpers={40: "Z"}), state(1)], "DataLoader", "rank 0 waits for its data"),
    "disk": ([state(0, "D"), state(1)], "Disk", "rank 0 waits for a disk or a volume"),
    "all wait": ([state(0), state(1)], "AllWait", "2 ranks all wait, and none computes"),
    "another collective": (
        [state(0, stack=stack("barrier", 52)), state(1, stack=stack("barrier", 52))]
        + [state(2, stack=stack("all_reduce", 41)), state(3, stack=stack("barrier", 52))],
        "OtherCollective",
        "rank 2 is in all_reduce of train.py:41; ranks 0, 1, 3 are in barrier of train.py:52",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_rank_that_holds_up_the_others_is_named(row):
    processes, kind, line = ROWS[row]
    (cause,) = causes_of(*processes)
    assert cause.kind == kind
    assert cause.line.startswith(line)
    assert "nothing was written for 90 s" in cause.evidence


def test_ranks_that_wait_for_too_many_others_are_named():
    ranks = [state(number, joining=Joining(number, 3), world_size=2) for number in range(2)]
    (cause,) = causes_of(*ranks)
    assert (cause.kind, cause.line[:57]) == (
        "WorldSize",
        "ranks 0, 1 are in init_process_group for a world size of ",
    )
    assert "world_size=2" in cause.fix


def test_a_rank_without_a_process_keeps_the_others_from_meeting():
    (cause,) = causes_of(state(0, joining=Joining(0, 3), world_size=3), state(1, joining=Joining(1, 3)))
    assert cause.line.startswith("rank 2 has no process: it ended with exit code 0, or never started; 2 of 3")
    assert cause.rank == 2


def test_why_a_rank_gave_no_collectives_is_said_with_what_was_not_read():
    ranks = [state(0), state(1, missing="mpi: RuntimeError: no such trace")]
    assert unread_of({"Node": "ada may not list nodes"}, ranks) == (
        "Node: ada may not list nodes",
        "collectives of rank 1: mpi: RuntimeError: no such trace",
    )


def test_a_store_at_localhost_is_one_for_each_pod():
    here = Joining(1, 2, "localhost:29500")
    (cause,) = causes_of(state(0, joining=Joining(0, 2)), state(1, joining=here, world_size=2))
    assert cause.kind == "MasterAddress"
    assert "finds no store of rank 0 at localhost:29500" in cause.line


def test_in_a_pod_whose_launcher_is_left_alone_no_helper_is_taken_for_a_rank():
    row = {"parent": 1, "state": "S", "cpu": 0.0, "rank": "", "local": False, "stack": "", "waits": ""}
    rows = [
        row | {"pid": 1, "parent": 0, "command": "python torchrun train.py"},
        row | {"pid": 2, "command": "python -m some.server"},
    ]
    assert [*read_states(json.dumps(rows), 1)] == []


def test_a_rank_that_left_the_loop_is_named_by_its_steps():
    def lines(number, steps):
        event = {"event": "step", "time": 1.0, "rank": number, "world_size": 2}
        return [Line("", json.dumps(event | {"step": step})) for step in range(steps)]

    (cause,) = causes_of(state(0), state(1), logs={0: lines(0, 9), 1: lines(1, 7)})
    assert cause.line == "rank 1 waits elsewhere: its last step was 6, that of others 8"


def test_a_program_that_computes_and_writes_nothing_is_well():
    assert causes_of(state(0, "R", 0.9), state(1, "R", 0.8)) == []
    assert causes_of(state(0, "R", 0.9), state(1, "R", 0.8), phase="Succeeded") == []
    assert causes_of() == []


def test_the_processes_of_ranks_are_told_from_their_launcher_and_their_data_loaders():
    row = {"parent": 1, "state": "S", "cpu": 0.0, "rank": "", "local": False, "stack": ""}
    row["waits"] = FUTEX
    rows = [
        row | {"pid": 1, "parent": 0, "command": "python torchrun train.py"},
        row | {"pid": 5, "command": "python train.py", "rank": "2", "local": True},
        row | {"pid": 6, "command": "python train.py", "rank": "3", "local": True, "state": "T"},
        row | {"pid": 9, "parent": 6, "command": "python train.py", "rank": "3", "local": True, "state": "Z"},
    ]
    ranks = list(read_states(json.dumps(rows), 1))
    assert [(item.rank, item.state, item.helpers) for item in ranks] == [(2, "S", {}), (3, "T", {9: "Z"})]
