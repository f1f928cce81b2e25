"""The check of the network between ranks: bus bandwidth by nccl-tests' formulas, and sums that are right."""

import json

import pytest

from .small_data import rank_lines

RANKS = 4
SIZES = [1024, 4096, 16384, 50_000]
BUS = {"all_reduce": 2 * (RANKS - 1) / RANKS, "all_gather": (RANKS - 1) / RANKS}


@pytest.fixture(scope="module")
def lines():
    """What four ranks on this machine write, where no GPU is used."""
    return rank_lines(RANKS, "nccl_check", "--max-bytes=50000", "--repeats=3")


@pytest.fixture(scope="module")
def events(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("operation", BUS)
def test_each_size_has_bus_bandwidth_by_the_formula_and_right_values(events, operation):
    rows = [event for event in events if event["event"] == "bandwidth" and event["operation"] == operation]
    assert [row["bytes"] for row in rows] == SIZES
    for row in rows:
        assert row["rank"] == 0 and row["wrong"] == 0 < row["seconds"]
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["seconds"], abs=1)
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * BUS[operation], abs=2)


def test_the_table_has_the_figures_of_the_events(lines, events):
    rows = [line.split() for line in lines if line.split()[:1] in (["all_reduce"], ["all_gather"])]
    measured = [event for event in events if event["event"] == "bandwidth"]
    assert [(row[0], int(row[1]), int(row[-1])) for row in rows] == [
        (event["operation"], event["bytes"], event["wrong"]) for event in measured
    ]


def test_each_rank_tells_what_decides_how_it_communicates(events):
    starts = [event for event in events if event["event"] == "start"]
    assert sorted(start["rank"] for start in starts) == list(range(RANKS))
    assert all({"interfaces", "variables", "backend", "torch", "cuda"} <= start.keys() for start in starts)
