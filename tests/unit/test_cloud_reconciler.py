"""Creating and deleting resources in order, on a simulated cloud in simulated time."""

import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clouds.reconciler.reconcile import bring_up, take_down
from clouds.reconciler.snapshot import Phase
from kitlib.errors import BadInput, Interrupted, ProviderFailed, WaitTimeout

from ..cloud.crash_injection import ProcessKilled
from ..cloud.simulated_cloud import Plan, SimulatedCloud, plans

WORDS = {"title": "cluster lab", "resume": "kit.create_cluster(…)"}
CHAIN = plans(
    Plan("network"),
    Plan("role"),
    Plan("disk", depends_on=("network",), seconds=120, seconds_gone=60),
    Plan("cluster", depends_on=("network", "role"), seconds=540, seconds_gone=300, parts=2),
    Plan("nodes", depends_on=("cluster",), seconds=180, seconds_gone=240),
)


def up(cloud, resources=None, **given):
    bring_up(resources or cloud.process(), clock=cloud.clock, **WORDS, **given)


def down(cloud, resources=None, **given):
    take_down(resources or cloud.process(), clock=cloud.clock, **WORDS, **given)


def test_what_does_not_depend_on_each_other_is_made_at_the_same_time():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    assert cloud.left() == sorted(CHAIN)
    assert cloud.breaches == []
    assert cloud.clock.now() == 540 + 180  # the longest chain; the disk is made meanwhile


def test_all_is_deleted_after_what_needs_it():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    began = cloud.clock.now()
    down(cloud)
    assert (cloud.left(), cloud.breaches) == ([], [])
    assert cloud.clock.now() - began == 240 + 300


def test_the_same_call_again_only_looks():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    before = len(cloud.log)
    up(cloud)
    assert [verb for _, verb, _ in cloud.log[before:]] == ["describe"] * len(CHAIN)


def test_a_thing_is_looked_at_no_more_often_than_it_allows():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    cloud.clock.advance(15)
    down(cloud)
    for name in ("disk", "cluster", "nodes"):
        looks = [when for when, verb, each in cloud.log if (verb, each) == ("describe", name)]
        gaps = [later - earlier for earlier, later in zip(looks, looks[1:], strict=False)]
        assert min(gaps) >= CHAIN[name].poll


def test_an_error_stops_what_has_not_begun_and_tells_what_stands():
    cloud = SimulatedCloud(CHAIN)
    cloud.on_call = lambda number: cloud.faults.update(
        {number: "refused"} if cloud.log[number][1:] == ("create", "cluster") else {}
    )
    seen = []
    with pytest.raises(ProviderFailed, match="not allowed") as caught:
        up(cloud, report=seen.append)
    assert "network: ready" in str(caught.value)
    assert "nodes: not begun" in str(caught.value)
    assert "kit.create_cluster(…)" in str(caught.value)
    assert [each.phase for each in seen[-1].steps if each.name == "nodes"] == [Phase.LEFT]
    assert seen[-1].over
    assert "nodes" not in cloud.left()
    assert cloud.clock.now() == 0  # nobody waited for the disk, which the cloud makes by itself now


def test_what_the_cloud_gave_up_on_before_is_deleted_and_made_anew():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    cloud.things["nodes"].broken = "no room"
    began = cloud.clock.now()
    up(cloud)
    assert cloud.things["nodes"].broken == ""
    assert cloud.counts()["delete", "nodes"] == 1
    assert cloud.clock.now() - began == 240 + 180  # gone, and made: nothing was waited for twice


@pytest.mark.parametrize("again", [False, True])
def test_what_the_cloud_gives_up_on_is_tried_again_once_where_that_may_help(again):
    cloud = SimulatedCloud(plans(Plan("nodes", seconds=60, again=again)))
    failures = iter(["gives up", "gives up"] if not again else ["gives up"])
    cloud.on_call = lambda number: cloud.faults.update(
        {number: next(failures, "")} if cloud.log[number][1] == "create" else {}
    )
    if again:
        up(cloud)
        assert cloud.counts()["create", "nodes"] == 2
    else:
        with pytest.raises(ProviderFailed, match="no room"):
            up(cloud)
        assert cloud.counts()["create", "nodes"] == 1


def test_what_is_being_deleted_is_waited_for_and_then_made():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    cloud.things["nodes"].gone = cloud.clock.now() + 100
    up(cloud)
    assert cloud.left() == sorted(CHAIN)


def test_what_the_cloud_shows_late_is_not_made_twice():
    cloud = SimulatedCloud(plans(Plan("network", lag=25, poll=5)))
    up(cloud)
    assert cloud.counts()["create", "network"] == 1 + 1  # after four looks that did not show it
    cloud = SimulatedCloud(plans(Plan("network", lag=15, poll=5)))
    up(cloud)
    assert cloud.counts()["create", "network"] == 1


def test_a_thing_that_never_comes_ends_the_work_with_the_clouds_words():
    cloud = SimulatedCloud(plans(Plan("cluster", seconds=1e9)))
    with pytest.raises(WaitTimeout, match="cluster took longer than .*pending"):
        resources = cloud.process()
        resources[0].expected = 60
        up(cloud, resources)


def test_one_thing_that_cannot_be_deleted_holds_up_only_what_it_needs():
    cloud = SimulatedCloud(CHAIN)
    up(cloud)
    cloud.on_call = lambda number: cloud.faults.update(
        {number: "refused"} if cloud.log[number][1:] == ("delete", "disk") else {}
    )
    with pytest.raises(ProviderFailed, match="(?s)not allowed.*disk: failed.*nodes: gone"):
        down(cloud)
    assert cloud.left() == ["disk", "network"]


def test_what_was_made_a_moment_before_and_not_seen_is_deleted_all_the_same():
    parts = CHAIN | plans(Plan("nodes", depends_on=("cluster",), lag=60))
    cloud = SimulatedCloud(parts)
    up(cloud)
    cloud.things["nodes"].since = cloud.clock.now()  # nobody sees it for a minute
    down(cloud)
    assert cloud.left() == []


def test_an_interruption_lets_requests_end_and_the_same_call_goes_on():
    cloud = SimulatedCloud(CHAIN)

    def press(snapshot):
        if any(each.name == "cluster" and each.state == "being made" for each in snapshot.steps):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="(?s)goes on by itself.*cluster: being made.*nodes: not begun"):
        up(cloud, report=lambda snapshot: None if snapshot.over else press(snapshot))
    assert not [each for each in threading.enumerate() if each.name.startswith("create-")]
    up(cloud)
    assert cloud.left() == sorted(CHAIN)
    assert cloud.counts()["create", "cluster"] == 2  # its two parts, each once


def test_a_key_that_is_pressed_while_the_cloud_is_asked_is_heard():
    cloud = SimulatedCloud(CHAIN)
    cloud.on_call = lambda number: signal.raise_signal(signal.SIGINT) if number == 3 else None
    with pytest.raises(Interrupted):
        up(cloud)
    up(cloud)
    assert cloud.left() == sorted(CHAIN)


def test_two_people_who_create_the_same_at_once_get_it_once():
    moments = []
    up(SimulatedCloud(CHAIN), report=moments.append)
    for moment in range(len(moments)):
        cloud = SimulatedCloud(CHAIN)
        reports = iter(range(len(moments) * 2))

        def another(_, cloud=cloud, moment=moment, reports=reports):
            if next(reports) == moment:
                up(cloud)  # somebody else does all of it meanwhile

        up(cloud, report=another)
        assert cloud.breaches == []
        assert cloud.left() == sorted(CHAIN)


def test_a_bug_of_a_resource_keeps_its_traceback():
    cloud = SimulatedCloud(CHAIN)
    resources = cloud.process()
    resources[0].describe = lambda: {}["no such key"]
    with pytest.raises(KeyError):
        up(cloud, resources)


def test_the_time_left_is_that_of_the_longest_chain():
    cloud = SimulatedCloud(CHAIN)
    seen = []
    up(cloud, report=seen.append)
    assert seen[0].remaining == 540 + 180
    assert [round(each.remaining) for each in seen if each.seconds == 540][-1] == 180
    assert seen[-1].remaining == 0
    assert str(seen[-1]) == "5 of 5 steps done after 12 min"


# Any graph, any faults


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    every = []
    for index in range(count):
        depends_on = draw(st.lists(st.integers(0, index - 1), unique=True, max_size=3)) if index else []
        every.append(
            Plan(
                f"thing-{index}",
                depends_on=tuple(f"thing-{each}" for each in depends_on),
                seconds=draw(st.sampled_from([0, 20, 300])),
                seconds_gone=draw(st.sampled_from([0, 20, 300])),
                parts=draw(st.integers(1, 3)),
                lag=draw(st.sampled_from([0, 0, 10])),
                again=draw(st.booleans()),
            )
        )
    return plans(*every)


KINDS = ("killed before", "killed after", "busy", "refused", "gives up", "lost")
faults = st.dictionaries(st.integers(0, 60), st.sampled_from(KINDS), max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs(), faults)
def test_whatever_happens_the_next_call_completes_it_and_nothing_is_left_afterwards(graph, faults):
    cloud = SimulatedCloud(graph, faults=faults)
    for _ in range(len(faults) + 1):
        try:
            up(cloud)
        except (ProcessKilled, ProviderFailed, BadInput):
            continue
        break
    else:
        raise AssertionError("it was never brought up, though the faults are used up")
    assert cloud.left() == sorted(graph)
    assert cloud.breaches == []
    cloud.faults = {len(cloud.log) + number: fault for number, fault in faults.items() if fault != "gives up"}
    for _ in range(len(faults) + 1):
        try:
            down(cloud)
        except (ProcessKilled, ProviderFailed):
            continue
        break
    assert (cloud.left(), cloud.breaches) == ([], [])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(graphs())
def test_creation_takes_as_long_as_its_longest_chain_and_no_longer(graph):
    cloud = SimulatedCloud({name: Plan(name, each.depends_on, each.seconds) for name, each in graph.items()})

    def chain(name):
        return graph[name].seconds + max(map(chain, graph[name].depends_on), default=0)

    up(cloud)
    polls = 15 * len(graph)  # what is ready is seen at the next look
    assert max(map(chain, graph)) <= cloud.clock.now() <= max(map(chain, graph)) + polls
