"""A run as a line of time: rounds, what was done, what it cost. Pure."""

from types import SimpleNamespace

import pytest

from trainyard_kit import elastic_lab
from trainyard_kit.elastic_lab import RunTimeline
from trainyard_kit.elastic_lab.disruptions import disruptions
from trainyard_kit.elastic_lab.timeline import build
from trainyard_kit.elastic_lab.timeline_plot import pauses

from .elastic_story import BEGAN, Story, lab


def timeline(story, *, now=16.0, without=(), store=()):
    done = disruptions(story.events, run="lab", workers=story.nodes, store=store)
    return build("lab", story.logs(without=without), done, now=BEGAN + now)


@pytest.fixture(scope="module")
def whole():
    return timeline(lab())


def columns(rows, *names):
    return [tuple(getattr(row, name) for name in names) for row in rows]


def test_each_change_has_a_row_that_says_who_and_which_round_followed(whole):
    assert columns(whole.rows, "what", "worker", "rank", "round", "before", "after") == [
        ("start", "", None, 1, 0, 2),
        ("killed", "lab-1", 1, 2, 2, 1),
        ("joined", "lab-1", 1, 3, 1, 2),
        ("paused", "lab-1", 1, 4, 2, 1),
        ("resumed", "lab-1", None, 5, 1, 2),
        ("scaled 2 → 3", "", None, 6, 2, 3),
    ]
    assert whole.world_sizes == (2, 1, 2, 1, 2, 3)
    assert whole.world_size == 3


def test_rows_say_how_long_the_next_step_took_and_where_the_state_came_from(whole):
    seconds = [round(row.seconds, 3) for row in whole.rows]
    assert seconds == [1.2, 0.95, 1.1, 5.95, 0.85, 1.55]
    assert [row.state for row in whole.rows] == ["fresh"] + ["live rank 0"] * 5
    assert whole.rows[1].node == "node-1"
    assert whole.rows[3].reason == "peer silent"


def test_a_step_that_one_rank_alone_had_reached_is_lost_and_repeated(whole):
    assert (whole.rows[1].steps_lost, whole.rows[1].steps_repeated) == (1, 1)
    assert (whole.steps_lost, whole.steps_repeated) == (1, 1)
    assert [(step.number, step.repeated) for step in whole.steps if step.number == 6] == [
        (6, False),
        (6, True),
    ]
    assert whole.samples == {0: 22 * 32}
    assert whole.step == 22


def test_workers_have_spans_of_training_waiting_and_hanging(whole):
    def spans(worker):
        return [
            (state.kind, round(state.begin - BEGAN, 2), round(state.end - BEGAN, 2))
            for state in whole.states[worker]
        ]

    assert spans("lab-1") == [
        ("waiting", 0.0, 1.0),
        ("training", 1.0, 2.25),
        ("waiting", 3.7, 4.5),
        ("training", 4.5, 5.1),
        ("waiting", 5.1, 5.25),
        ("hanging", 5.25, 11.85),
        ("waiting", 11.85, 12.5),
        ("training", 12.5, 14.0),
        ("waiting", 14.0, 14.5),
        ("training", 14.5, 15.4),
    ]
    assert whole.paused == frozenset()
    assert not whole.gaps


def test_a_paused_worker_hangs_until_it_continues():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    both = list(story.nodes)
    story.meet(1.0, 0, both, reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 4), both)  # to 1.6, after the pause
    story.happen(1.5, "Paused", "Pod", "lab-1")
    story.meet(8.0, 1, ["lab-0"], reason="peer silent", step=4)
    story.happen(9.0, "Resumed", "Pod", "lab-1")
    story.say(9.1, "lab-1", "lost", rank=1, world=2, epoch=0, step=4, reason="the others have gone on")
    story.meet(9.5, 2, both, reason="join", step=5, waited=0.4)
    story.train(9.7, range(5, 8), both)
    story.happen(12.0, "Stopped", "Node", "node-1")
    story.meet(18.0, 3, ["lab-0"], reason="peer silent", step=8)
    states = timeline(story, now=19.0).states["lab-1"]
    assert [(state.kind, round(state.end - BEGAN, 2)) for state in states][1:] == [
        ("training", 1.5),
        ("hanging", 9.0),
        ("waiting", 9.5),
        ("training", 12.0),
    ]


def test_a_worker_that_hangs_is_known_until_somebody_lets_it_go_on():
    story = lab()
    story.events = story.events[:2]
    story.written = {
        worker: [line for line in lines if "time" in line][:9] for worker, lines in story.written.items()
    }
    built = timeline(story, now=8.0)
    assert built.paused == {"lab-1"}
    last = built.rows[-1]
    assert (last.what, last.round, last.after, last.seconds) == ("paused", None, None, None)


def test_a_log_that_is_gone_leaves_a_gap_that_is_told():
    built = timeline(lab(), without=("lab-1",))
    assert built.world_sizes == (2, 1, 2, 1, 2, 3)
    assert built.gaps[0].startswith("round 1: 1 of 2 ranks have no log")
    assert {state.kind for state in built.states["?"]} == {"unknown"}
    assert "round 1" in repr(built)
    assert "have no log" in built._repr_html_()


def test_state_from_a_checkpoint_shows_what_was_lost():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    both = ["lab-0", "lab-1"]
    story.meet(1.0, 1, both, reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 11), both)
    story.happen(3.1, "Stopped", "Node", "node-0")
    story.happen(3.2, "Stopped", "Node", "node-1")
    story.meet(9.0, 2, both, reason="start", step=6, source="checkpoint", pids={"lab-0": 2, "lab-1": 2})
    story.train(9.2, range(6, 14), both)
    built = timeline(story)
    assert columns(built.rows[1:], "what", "node", "state", "steps_lost", "steps_repeated") == [
        ("node stopped", "node-0", "checkpoint", 5, 5),
        ("node stopped", "node-1", "checkpoint", None, None),
    ]
    assert built.samples == {0: 13 * 32}


def test_an_eviction_of_who_was_gone_already_does_not_explain_what_befell_the_others():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    story.meet(1.0, 1, ["lab-0", "lab-1"], reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 4), ["lab-0", "lab-1"])
    story.happen(2.0, "Stopped", "Node", "node-1")
    story.meet(4.0, 2, ["lab-0"], reason="peer silent", step=4)
    story.train(4.2, range(4, 14), ["lab-0"])
    story.happen(7.0, "TaintManagerEviction", "Pod", "lab-1", "Marking for deletion Pod default/lab-1")
    story.happen(8.0, "Killed", "Pod", "lab-0")
    story.meet(9.0, 3, ["lab-0"], reason="start", step=11, source="checkpoint", pids={"lab-0": 2})
    story.train(9.2, range(11, 14), ["lab-0"])
    assert columns(timeline(story).rows[1:], "what", "round", "state", "steps_lost", "steps_repeated") == [
        ("node stopped", 2, "live rank 0", 0, 0),
        ("evicted", None, "", None, None),
        ("killed", 3, "checkpoint", 3, 3),
    ]


def test_rounds_of_a_new_store_are_told_from_those_of_the_old_one():
    story = Story({"lab-0": "node-0"})
    story.meet(1.0, 1, ["lab-0"], reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 4), ["lab-0"])
    story.happen(2.0, "Killing", "Pod", "lab-store", "Stopping container store")
    story.meet(90.0, 1, ["lab-0"], reason="peer lost", step=4)
    story.train(90.2, range(4, 6), ["lab-0"])
    built = timeline(story, now=100.0, store=("lab-store",))
    assert built.world_sizes == (1, 1)
    assert "store lost" in [row.what for row in built.rows]


def test_an_eviction_is_shown_once_and_a_cancelled_one_not_at_all():
    story = lab()
    story.happen(3.4, "Preempted", "Pod", "lab-1", "Preempted by pod nginx")
    story.happen(4, "Killing", "Pod", "lab-1", "Stopping container pytorch")
    story.happen(5.0, "TaintManagerEviction", "Pod", "lab-1", "Cancelling deletion of Pod default/lab-1")
    story.happen(6.0, "Killing", "Pod", "other-0", "somebody else's")
    whats = [act.what for act in disruptions(story.events, run="lab", workers=story.nodes)]
    assert whats == ["killed", "preempted", "paused", "resumed", "scaled 2 → 3"]


def test_a_trainer_that_knows_no_rendezvous_has_the_round_of_its_start():
    story = Story({"fixed-0": "node-0", "fixed-1": "node-1"})
    for rank, worker in enumerate(story.nodes):
        story.say(0.0, worker, "start", rank=rank, world=2)
    story.train(0.2, range(1, 4), list(story.nodes))
    built = timeline(story, now=2.0)
    assert built.world_sizes == (2,)
    assert [state.kind for state in built.states["fixed-0"]] == ["training"]


def test_times_in_whole_seconds_keep_their_round():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    story.meet(1.0, 1, list(story.nodes), reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 20), list(story.nodes))
    story.happen(4, "Killed", "Pod", "lab-1")
    story.meet(5.5, 2, ["lab-0"], reason="peer lost", step=20)
    built = timeline(story, now=6.0)
    assert columns(built.rows, "what", "round", "after") == [("start", 1, 2), ("killed", 2, 1)]
    assert built.rows[-1].seconds is None
    assert not built.training


def test_the_table_and_the_frame_say_the_same(whole):
    assert "+2.2 s" in repr(whole)
    assert "2 → 1" in repr(whole)
    frame = whole.frame()
    assert list(frame.what) == [row.what for row in whole.rows]
    assert frame.steps_repeated.sum() == 1
    assert "<table>" in whole._repr_html_()


def test_a_run_that_has_said_nothing_has_an_empty_timeline():
    built = build("lab", [], [], now=BEGAN)
    assert (built.rows, built.world_size, built.step, built.samples) == ((), 0, 0, {})
    assert repr(built) == "no worker has reported anything yet"


def test_a_timeline_ends_where_its_logs_do_though_the_log_of_a_lost_node_took_long(monkeypatch):
    clock = [BEGAN + 5]
    monkeypatch.setattr(elastic_lab, "time", SimpleNamespace(time=lambda: clock[-1]))
    monkeypatch.setattr(elastic_lab, "namespace_events", lambda kube: [])
    cache = SimpleNamespace(objects=SimpleNamespace(name="lab", kube=None), logs={})
    cache.refresh = lambda listed: clock.append(BEGAN + 15)
    assert elastic_lab.read_timeline(cache, [], finished=False).now == BEGAN + 5


def test_a_hundred_changes_and_none_at_all_can_be_drawn(whole):
    story = Story({f"lab-{number}": "node-0" for number in range(4)})
    at = 1.0
    for number in range(1, 101):
        workers = list(story.nodes)[: 1 + number % 4]
        story.meet(at, number, workers, reason="join" if number % 4 else "peer lost", step=10 * number)
        story.train(at + 0.2, range(10 * number, 10 * number + 5), workers)
        at += 3
    busy = timeline(story, now=at)
    for shown in (busy, whole, build("lab", [], [], now=BEGAN)):
        drawn = RunTimeline.of(shown).plot()
        assert drawn._repr_png_().startswith(b"\x89PNG")
    assert pauses(whole)[1][2] == "1.0 s"


def test_a_run_is_settled_when_what_was_done_to_those_who_train_has_been_answered():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    story.meet(1.0, 0, list(story.nodes), reason="start", step=0, source="fresh")
    assert not timeline(story, now=1.1).settled
    story.train(1.2, range(3), list(story.nodes))
    assert timeline(story, now=2.0).settled
    story.happen(2.5, "Stopped", "Node", "node-1")
    assert not timeline(story, now=3.0).settled
    story.meet(8.0, 1, ["lab-0"], reason="peer silent", step=3)
    story.train(8.2, [3], ["lab-0"])
    story.happen(9.0, "TaintManagerEviction", "Pod", "lab-1", "Marking for deletion Pod default/lab-1")
    story.happen(9.5, "Started", "Node", "node-1")
    assert timeline(story, now=10.0).settled
    story.happen(11.0, "Scaled", "PodTemplate", "lab", "from 1 to 2 workers")
    assert not timeline(story, now=12.0).settled
