"""What the program that measures the network says: every pair once, and figures that agree."""

import json
from itertools import combinations

import pytest

from .small_data import rank_lines

RANKS, BYTES = 3, 2**20


@pytest.fixture(scope="module")
def events():
    """What three ranks on this machine report."""
    lines = rank_lines(RANKS, "allreduce", f"--bytes={BYTES}", "--repeats=3")
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_every_pair_is_measured_once_by_the_first_of_the_two(events):
    pairs = [event for event in events if event["event"] == "pair"]
    assert sorted((pair["a"], pair["b"]) for pair in pairs) == list(combinations(range(RANKS), 2))
    assert all(pair["rank"] == pair["a"] for pair in pairs)
    assert all(1 < pair["latency_us"] < 1e6 for pair in pairs)
    assert all(1e6 < pair["bandwidth_bytes_per_s"] < 1e12 for pair in pairs)


def test_the_all_reduce_is_measured_from_one_number_to_the_large_message(events):
    measured = [event for event in events if event["event"] == "allreduce"]
    assert [event["bytes"] for event in measured] == [4, BYTES // 64, BYTES // 8, BYTES]
    for event in measured:  # two of three parts of the bytes go each way: 2 (n - 1) / n
        bus = event["bytes"] / event["seconds"] * 4 / 3
        assert event["bandwidth_bytes_per_s"] == pytest.approx(bus, abs=1)


def test_each_rank_says_where_it_is_and_by_what_it_speaks(events):
    starts = [event for event in events if event["event"] == "start"]
    assert sorted(start["rank"] for start in starts) == list(range(RANKS))
    assert {start["backend"] for start in starts} <= {"gloo", "nccl"}
    assert all(start["host"] and start["world_size"] == RANKS for start in starts)
