"""Who ran where: pods as they were seen in, stays and a picture out."""

import pytest

from kitlib.metrics.placement import Placement, group_of, short
from kitlib.widgets.plots import plot_placement

from . import objects

EARLIER = "2026-01-01T00:00:00Z"
START = 1767225600.0  # the same in seconds


def pod(uid, *, phase="Pending", name="digits-worker-0", why="", node="", leaving=False, **labels):
    conditions = [objects.condition("DisruptionTarget", reason=why)] if why else []
    meta = {"uid": uid, "creationTimestamp": EARLIER, "labels": labels}
    return objects.pod(name, phase=phase, conditions=conditions, node=node, leaving=leaving, **meta)


@pytest.fixture
def placement():
    """A worker that is preempted for another pod, made again, and waits."""
    recorded = Placement(["node-0", "node-1"])
    look = {"node": "node-0", "phase": "Running"}
    preempted = {"leaving": True, "why": "PreemptionByScheduler"}
    recorded.observe([pod("a", **look)], now=START + 1)
    recorded.observe([pod("a", **look), pod("n", name="nginx-x", app="nginx")], now=START + 2)
    recorded.observe([pod("a", **look | preempted), pod("n", name="nginx-x", app="nginx")], now=START + 3)
    recorded.observe([pod("b"), pod("n", name="nginx-x", app="nginx", **look)], now=START + 5)
    return recorded


def test_a_pods_time_is_told_by_state_and_place(placement):
    intervals = [(stay.uid, stay.state, stay.node, stay.began - START) for stay in placement.intervals]
    assert intervals == [
        ("a", "running", "node-0", 0),  # it ran before the first look: the API says since when
        ("n", "waiting", "", 2),
        ("a", "leaving", "node-0", 3),
        ("b", "waiting", "", 5),
        ("n", "running", "node-0", 5),
    ]
    assert [interval.uid for interval in placement.intervals if interval.ended is None] == ["b", "n"]


def test_the_table_has_a_row_a_pod_also_where_two_had_one_name(placement):
    rows = list(placement.table(now=START + 9))
    assert [(row["pod"], row["of"], row["end"]) for row in rows] == [
        ("digits-worker-0", "digits-worker-0", "preempted"),
        ("nginx-x", "nginx", "running"),
        ("digits-worker-0", "digits-worker-0", "waiting"),
    ]
    assert [(row["waited, s"], row["ran, s"]) for row in rows] == [
        ("0.0", "5.0"),
        ("3.0", "4.0"),
        ("4.0", "0.0"),
    ]


def test_pods_are_of_their_run_or_else_of_their_job_or_app():
    labels = {"trainyard/run": "digits", "app": "nginx"}
    assert group_of(pod("a", **labels)) == "digits"
    assert group_of(pod("a", **{"elasticdl-job-name": "mnist", "app": "elasticdl"})) == "mnist"
    assert group_of(pod("a", app="nginx")) == "nginx"
    pods = ("m-worker-12", "m-ps-0", "m-master", "m-master-0", "digits-3", "nginx-7585fc5976-5hs7h")
    assert [short(name) for name in pods] == ["w12", "ps 0", "master", "master", "3", ""]


def test_the_picture_has_a_lane_for_those_who_wait_and_one_for_each_node(placement):
    for step in range(20):
        placement.add_loss("digits-worker-0", START + step / 4, 1 / (1 + step))
    figure = plot_placement(placement, title="lab", alt="", began=START, now=START + 9).figure
    lanes, loss = figure.axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["Pending", "node-0", "node-1"]
    assert len(loss.lines[0].get_xdata()) == 20
    assert [text.get_text() for text in lanes.get_legend().get_texts()][:2] == ["digits-worker-0", "nginx"]


def test_losses_of_a_long_run_stay_within_bounds(placement):
    for step in range(20_000):
        placement.add_loss("digits", step, 1.0)
    times = [time for time, _ in placement.losses["digits"]]
    assert len(times) <= 4096
    assert times[-1] == 19_999
    assert times[0] == 0
