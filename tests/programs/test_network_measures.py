"""What the programs that measure the network between ranks report: figures that agree with the formulas."""

from itertools import combinations

import pytest

from .small_data import of_kind, rank_events, rank_lines, read_events

RANKS, BYTES = 3, 2**20
SIZES = [size // (4 * RANKS) * 4 * RANKS for size in (1024, 4096, 16384, 50_000)]
BUS = {"all_reduce": 2 * (RANKS - 1) / RANKS, "all_gather": (RANKS - 1) / RANKS}  # of nccl-tests


@pytest.fixture(scope="module")
def events():
    """What `allreduce` reports of three ranks on this machine."""
    return rank_events(RANKS, "allreduce", f"--bytes={BYTES}", "--repeats=3")


@pytest.fixture(scope="module")
def checked():
    """The lines that `nccl_check` writes, where no GPU is used."""
    return rank_lines(RANKS, "nccl_check", "--max-bytes=50000", "--repeats=3")


def test_every_pair_is_measured_once_by_the_first_of_the_two(events):
    pairs = of_kind(events, "pair")
    assert sorted((pair["a"], pair["b"]) for pair in pairs) == list(combinations(range(RANKS), 2))
    assert all(pair["rank"] == pair["a"] for pair in pairs)
    assert all(1 < pair["latency_us"] < 1e6 for pair in pairs)
    assert all(1e6 < pair["bandwidth_bytes_per_s"] < 1e12 for pair in pairs)


def test_the_all_reduce_is_measured_from_one_number_to_the_large_message(events):
    measured = of_kind(events, "allreduce")
    assert [event["bytes"] for event in measured] == [4, BYTES // 64, BYTES // 8, BYTES]
    for event in measured:
        bus = event["bytes"] / event["seconds"] * BUS["all_reduce"]
        assert event["bandwidth_bytes_per_s"] == pytest.approx(bus, abs=1)


def test_each_size_has_bus_bandwidth_by_the_formula_and_right_values(checked):
    measured = of_kind(read_events(checked), "bandwidth")
    for operation, factor in BUS.items():
        rows = [event for event in measured if event["operation"] == operation]
        assert [row["bytes"] for row in rows] == SIZES
        for row in rows:
            assert row["rank"] == 0 and row["wrong"] == 0 < row["seconds"]
            assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["seconds"], abs=1)
            assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * factor, abs=2)
    table = [line.split() for line in checked if line.split()[:1] in (["all_reduce"], ["all_gather"])]
    assert [(row[0], int(row[1]), int(row[-1])) for row in table] == [
        (event["operation"], event["bytes"], event["wrong"]) for event in measured
    ]


def test_each_rank_reports_where_it_is_and_how_it_communicates(events, checked):
    for starts in (of_kind(events, "start"), of_kind(read_events(checked), "start")):
        assert sorted(start["rank"] for start in starts) == list(range(RANKS))
        assert {start["backend"] for start in starts} <= {"gloo", "nccl"}
    assert all({"interfaces", "variables", "torch", "cuda"} <= start.keys() for start in starts)
    assert all(start["host"] and start["world_size"] == RANKS for start in of_kind(events, "start"))
