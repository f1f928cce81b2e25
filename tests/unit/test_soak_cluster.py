"""The soak's plan is a function of its seed, and each of its checks sees the damage that it is for."""

from dataclasses import replace

import pytest
import soak_cluster
from soak.attendee import Broken, count_lines, pod_spec
from soak.ledger import ABSENT, Ledger
from soak.resources import ResourceCounts

from localkube.config import MEMORY_SHARE
from localkube.kubelet.quantity import parse

KEY = ("attendee-01", "ConfigMap", "object-1")
ONE = {"kubelet": 1}
FEW = {"namespaces": 7, "interfaces": 3, "pod_directories": 2, "control_groups": 3}
COUNTS = ResourceCounts(processes=ONE, zombies=0, mounts=ONE, descriptors=ONE, files=ONE, **FEW)


@pytest.mark.parametrize(
    ("content", "stored", "words"),
    [
        ("a", {}, "does not exist"),
        ("a", {KEY: "b"}, "contains 'b'"),
        (ABSENT, {KEY: "a"}, "contains 'a', expected nothing"),
    ],
    ids=["lost", "changed", "back after its deletion"],
)
def test_lost_acknowledged_content_is_found(content, stored, words):
    ledger = Ledger()
    ledger.sent(KEY, content)
    ledger.answered(KEY, content)
    (problem,) = ledger.check(stored)
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


@pytest.mark.parametrize("lines", [["line 1", "line 3"], ["line 1", "line 1"], ["line 1", "ine 2"]])
def test_a_line_that_is_missing_comes_twice_or_is_torn_is_found(lines):
    assert count_lines(["line 7", "line 8"], about="here") == 2
    with pytest.raises(Broken, match="here"):
        count_lines(lines, about="here")


@pytest.mark.parametrize("field", [name for name in vars(COUNTS) if name != "zombies"])
def test_each_resource_that_is_left_behind_is_found(field):
    value = getattr(COUNTS, field)
    more = {key: count + 1 for key, count in value.items()} if isinstance(value, dict) else value + 1
    assert COUNTS.differences(COUNTS) == []
    (problem,) = replace(COUNTS, **{field: more}).differences(COUNTS)
    assert problem.startswith(f"{field}: ")


def test_the_pods_of_thirty_attendees_fit_on_the_disk_that_is_filled():
    (container,) = pod_spec([])["containers"]
    desk_and_job = 2 * parse(container["resources"]["requests"]["ephemeral-storage"])
    of_a_node = (int(soak_cluster.DISK.removesuffix("m")) << 20) * MEMORY_SHARE / soak_cluster.NODES
    assert 30 * desk_and_job < of_a_node
