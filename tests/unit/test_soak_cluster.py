"""The soak's plan is a function of its seed, and each of its checks sees the damage that it is for."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import memory
from soak.attendee import Broken, count_lines
from soak.churn import MachineCounts
from soak.ledger import ABSENT, Ledger
from soak.memory import Sample
from soak.plan import LANES, UNDO, plan
from soak.resources import ResourceCounts

KEY = ("attendee-01", "ConfigMap", "object-1")
COUNTS = ResourceCounts(
    processes={"kubelet": 1},
    zombies=0,
    namespaces=7,
    interfaces=3,
    mounts={"kubelet": 20},
    descriptors={"kubelet": 24},
    files={"pods": 4},
    pod_directories=2,
    control_groups=3,
)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), seconds=st.floats(1, 600))
def test_the_same_seed_gives_the_same_disturbances_and_what_lasts_is_undone_in_time(seed, seconds):
    made = plan(seed, seconds=seconds)
    assert made == plan(seed, seconds=seconds)
    assert [each.at for each in made] == sorted(each.at for each in made)
    assert all(0 <= each.at <= seconds and 0 <= each.pick < 1 for each in made)
    for name, lane in LANES.items():
        own = [each for each in made if each.lane == name]
        assert all(each.at <= seconds * lane.until for each in own)
        if lane.lasts:
            assert [each.what for each in own[1::2]] == [UNDO + each.what for each in own[::2]]
            assert [each.pick for each in own[1::2]] == [each.pick for each in own[::2]]


@pytest.mark.parametrize(
    ("content", "found", "words"),
    [
        ("a", {}, "is not there"),
        ("a", {KEY: "b"}, "contains 'b'"),
        (ABSENT, {KEY: "a"}, "contains 'a', and not nothing"),
    ],
    ids=["lost", "changed", "back after its deletion"],
)
def test_what_was_acknowledged_and_is_not_so_is_found(content, found, words):
    ledger = Ledger()
    ledger.sent(KEY, content)
    ledger.answered(KEY, content)
    (problem,) = ledger.check(found)
    assert words in problem


def test_without_an_answer_both_are_possible_until_the_next_one():
    ledger = Ledger()
    ledger.sent(KEY, "a")
    ledger.answered(KEY, "a")
    ledger.sent(KEY, "b")
    ledger.lost(KEY, "b")
    assert ledger.check({KEY: "a"}) == ledger.check({KEY: "b"}) == []
    assert ledger.check({}), "it exists, with one or the other"
    ledger.sent(KEY, "c")
    ledger.answered(KEY, "c")
    assert ledger.check({KEY: "c"}) == []
    assert ledger.check({KEY: "b"})


def test_a_refused_request_leaves_what_was_and_a_deletion_without_an_answer_ends_the_objects_use():
    ledger = Ledger()
    before = ledger.possible(KEY)
    ledger.sent(KEY, "a")
    ledger.refused(KEY, "a", before)
    assert ledger.check({}) == [] and ledger.check({KEY: "a"})
    ledger.sent(KEY, "a")
    ledger.answered(KEY, "a")
    assert ledger.usable(*KEY[:2]) == [KEY[2]]
    ledger.sent(KEY, ABSENT)
    ledger.lost(KEY, ABSENT)
    assert ledger.usable(*KEY[:2]) == []
    assert ledger.check({}) == ledger.check({KEY: "a"}) == []


@pytest.mark.parametrize("lines", [["line 1", "line 3"], ["line 1", "line 1"], ["line 1", "ine 2"]])
def test_a_line_that_is_missing_comes_twice_or_is_torn_is_found(lines):
    assert count_lines(["line 7", "line 8"], about="here") == 2
    with pytest.raises(Broken, match="here"):
        count_lines(lines, about="here")


@pytest.mark.parametrize("field", [each for each in vars(COUNTS) if each != "zombies"])
def test_each_resource_that_is_left_behind_is_found(field):
    value = getattr(COUNTS, field)
    more = {key: count + 1 for key, count in value.items()} if isinstance(value, dict) else value + 1
    assert COUNTS.differences(COUNTS) == []
    (problem,) = replace(COUNTS, **{field: more}).differences(COUNTS)
    assert problem.startswith(f"{field}: ")


def sizes(*figures, pid=1, begun=0):
    return [Sample(begun + 10.0 * index, pid, size) for index, size in enumerate(figures)]


def test_memory_is_that_of_the_last_process_after_a_while_against_its_end():
    before = sizes(*[900] * 10)
    steady = sizes(*range(10), *[100] * 30, pid=2, begun=100)
    assert memory.growth(before + steady, after=100) == (100, 100)
    grown = sizes(*[100] * 20, *[111] * 20, pid=2, begun=100)
    assert memory.grown("kubelet", memory.growth(before + grown, after=100)) == [
        "kubelet has grown from 100 to 111 bytes"
    ]
    assert memory.grown("kubelet", (100, 110)) == []
    assert memory.growth(before + sizes(*[100] * 15, pid=2), after=100) is None
    assert memory.grown("kubelet", None), "what cannot be judged is no success"


def test_a_file_a_process_and_a_descriptor_that_a_deleted_cluster_left_are_found(tmp_path):
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    home.mkdir()
    scratch.mkdir()
    before = MachineCounts.of(home, scratch)
    assert MachineCounts.of(home, scratch).more_than(before) == []
    (scratch / "left").touch()
    descriptor = os.open(scratch, os.O_RDONLY)
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = MachineCounts.of(home, scratch).more_than(before)
        process.communicate()
    os.close(descriptor)
    assert {each.split(":")[0] for each in found} == {"files", "processes", "descriptors"}
