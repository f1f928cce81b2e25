"""Where a step goes, from traces made by hand: each number is known."""

import gzip
import json

import pytest

from kitlib.errors import BadInput
from trainyard_kit.step_trace import PARTS, read_traces


def event(name, cat, begin, end, tid=1):
    """Make an event of Chrome's format; times in milliseconds."""
    return {"ph": "X", "name": name, "cat": cat, "tid": tid, "ts": begin * 1000, "dur": (end - begin) * 1000}


def rank_of(rank, events, *, clock=0):
    """Make the trace of a rank whose clock is some milliseconds ahead."""
    events = [item | {"ts": item["ts"] + clock * 1000} for item in events]
    return {"distributedInfo": {"rank": rank}, "traceEvents": [*events, {"ph": "M", "name": "process_name"}]}


def cpu(computes, arrives, *, data=(0, 10), ends=80, step=(0, 100)):
    """One step: it reads, computes, and takes part in one all-reduce."""
    return [
        event("ProfilerStep#3", "user_annotation", *step),
        event("data", "user_annotation", *data),
        event("aten::index", "cpu_op", *data),
        event("aten::mm", "cpu_op", *computes),
        event("aten::t", "cpu_op", computes[0], computes[0] + 1),
        event("c10d::allreduce_", "cpu_op", arrives, ends),
        event("gloo:all_reduce", "user_annotation", arrives, ends, tid=2),
        event("aten::copy_", "cpu_op", arrives, ends, tid=2),
    ]


@pytest.fixture
def read(tmp_path):
    """Write the traces of some ranks, one of them compressed, and read them."""

    def write(*ranks):
        for number, content in enumerate(ranks):
            text = json.dumps(content).encode()
            name = f"rank-{number}.json" + (".gz" if number else "")
            (tmp_path / name).write_bytes(gzip.compress(text) if number else text)
        return read_traces(tmp_path)

    return write


def row(trace, rank):
    return {part: round(ms, 6) for part, ms in (trace.seconds.loc[rank] * 1e3).items()}


def test_each_part_of_a_step_is_counted_once(read):
    trace = read(rank_of(0, cpu((10, 40), 30)), rank_of(1, cpu((10, 70), 65)))
    assert row(trace, 0) == {
        "computing": 30,
        "data": 10,
        "communication": 15,  # from the last arrival, at 65, to the end at 80
        "waiting": 25,  # from the end of its computing at 40
        "other": 20,
        "hidden": 10,  # from 30 to 40
    }
    assert row(trace, 1) == {
        "computing": 60,
        "data": 10,
        "communication": 10,
        "waiting": 0,
        "other": 20,
        "hidden": 5,
    }
    assert (trace.seconds[list(PARTS)].sum(axis=1) * 1e3).round(6).tolist() == [100, 100]


def test_the_rank_for_which_the_others_wait_is_slow_however_its_clock_goes(read):
    early, late = cpu((10, 20), 20), cpu((10, 70), 70)
    trace = read(rank_of(0, early), rank_of(1, early, clock=5000), rank_of(2, late, clock=-7))
    assert trace.slow_rank == 2
    assert {rank: round(s * 1e3, 6) for rank, s in trace.blame.items()} == {0: 0, 1: 0, 2: 100}
    assert [row(trace, rank)["waiting"] for rank in range(3)] == [50, 50, 0]


def test_no_rank_is_slow_where_the_ranks_wait_for_each_other_or_hardly_at_all(read):
    assert read(rank_of(0, cpu((10, 60), 60)), rank_of(1, cpu((10, 62), 62))).slow_rank is None
    turns = [
        [*cpu((10, 20), 20, ends=40), event("gloo:x", "user_annotation", 70, 90, tid=2)] for _ in range(2)
    ]
    turns[0][-1] = event("gloo:x", "user_annotation", 50, 90, tid=2)
    turns[1][6] = event("gloo:all_reduce", "user_annotation", 12, 40, tid=2)
    trace = read(rank_of(0, turns[0]), rank_of(1, turns[1]))
    assert round(trace.blame[1] * 1e3, 6) == 20
    assert round(trace.blame[0] * 1e3, 6) == 0, "rank 1 computed while it was early"


def test_two_operations_at_a_time_expose_a_millisecond_once(read):
    both = [event("gloo:all_reduce", "user_annotation", 40, 60, tid=tid) for tid in (2, 3)]
    steps = [event("ProfilerStep#3", "user_annotation", 0, 100), *both]
    trace = read(rank_of(0, steps), rank_of(1, steps))
    assert row(trace, 0) == dict.fromkeys((*PARTS, "hidden"), 0) | {"communication": 20, "other": 80}


def test_several_steps_are_averaged_and_what_lies_outside_of_them_does_not_count(read):
    events = [
        event("ProfilerStep#3", "user_annotation", 0, 100),
        event("ProfilerStep#4", "user_annotation", 100, 300),
        event("aten::mm", "cpu_op", 50, 150),
        event("aten::mm", "cpu_op", 300, 900),
        event("gloo:all_reduce", "user_annotation", 290, 310, tid=2),
    ]
    trace = read(rank_of(0, events), rank_of(1, events))
    assert row(trace, 1) == {
        "computing": 50,
        "data": 0,
        "communication": 5,
        "waiting": 0,
        "other": 95,
        "hidden": 0,
    }


def test_on_a_gpu_kernels_compute_and_those_of_nccl_communicate(read):
    def gpu(arrives):
        return [
            event("ProfilerStep#3", "user_annotation", 0, 100),
            event("ProfilerStep#3", "gpu_user_annotation", 5, 105),
            event("aten::mm", "cpu_op", 0, 90),
            event("sm90_gemm", "kernel", 10, 50, tid=7),
            event("Memcpy HtoD", "gpu_memcpy", 0, 10, tid=7),
            event("ncclDevKernel_AllReduce_Sum_f32", "kernel", arrives, 80, tid=20),
        ]

    trace = read(rank_of(0, gpu(40)), rank_of(1, gpu(70)))
    assert row(trace, 0) == {
        "computing": 50,
        "data": 0,
        "communication": 10,
        "waiting": 20,
        "other": 20,
        "hidden": 10,
    }


def test_folders_without_traces_and_traces_of_two_runs_are_refused(read, tmp_path):
    with pytest.raises(BadInput, match="--trace-dir"):
        read_traces(tmp_path)
    more = [*cpu((10, 20), 20), event("ProfilerStep#4", "user_annotation", 100, 200)]
    with pytest.raises(BadInput, match="not from the same run"):
        read(rank_of(0, more), rank_of(1, cpu((10, 20), 20)))


def test_the_picture_says_in_words_what_it_shows(read):
    picture = read(rank_of(0, cpu((10, 40), 30)), rank_of(1, cpu((10, 70), 65))).plot()
    assert "the others wait for rank 1" in picture.alt
    assert (
        "rank 0: computing 30 ms, data 10 ms, communication 15 ms, waiting 25 ms, other 20 ms" in picture.alt
    )
