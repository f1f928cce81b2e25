"""The dashboard's buttons: which make sense when, what they call, and what they say. Without a cluster."""

import threading
from types import SimpleNamespace

import ipywidgets
import pytest

from kitlib.display.progress import Progress, progress
from kitlib.errors import BadInput
from trainyard_kit.elastic_lab.dashboard import Buttons, Dashboard
from trainyard_kit.elastic_lab.disruptions import disruptions
from trainyard_kit.elastic_lab.timeline import build

from .elastic_story import BEGAN, Story


class Run:
    """What the buttons need of a run: calls are written down."""

    name = "lab"
    kube = SimpleNamespace(cluster="none")

    def __init__(self):
        self.called, self.replicas = [], 2

    def limits(self):
        return self.replicas, 1, 3

    def kill(self, *, rank):
        with progress("run lab") as line:
            self.shown = type(line)
        self.called.append(("kill", rank, threading.current_thread().name))
        return f"lab-{rank}: killed"

    def pause(self, *, rank):
        raise BadInput(f"no process trains as rank {rank}", about="run lab", fix="one of 0, 1")

    def scale(self, workers):
        self.called.append(("scale", workers))
        self.replicas = workers


class Cluster:
    """Two nodes."""

    def __init__(self):
        self.called = []

    def nodes(self):
        return [{"node": "node-0"}, {"node": "node-1"}]

    def stop_node(self, node):
        self.called.append(node)


def buttons_of(run, cluster):
    return Buttons(run, cluster, ipywidgets.HTML(), replicas=run.limits)


@pytest.fixture
def controls():
    run, cluster = Run(), Cluster()
    return SimpleNamespace(run=run, cluster=cluster, buttons=buttons_of(run, cluster))


def look(story, *, now):
    done = disruptions(story.events, run="lab", workers=story.nodes)
    return build("lab", story.logs(), done, now=BEGAN + now)


def beginning():
    story = Story({"lab-0": "node-0", "lab-1": "node-1"})
    story.meet(1.0, 1, list(story.nodes), reason="start", step=0, source="fresh")
    story.train(1.2, range(3), list(story.nodes))
    return story


def every(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from every(child)


def enabled(buttons):
    all_buttons = (button for button in every(buttons.box) if isinstance(button, ipywidgets.Button))
    return {button.tooltip.partition(":")[0] for button in all_buttons if not button.disabled}


def press(buttons, name):
    all_buttons = (button for button in every(buttons.box) if isinstance(button, ipywidgets.Button))
    next(button for button in all_buttons if button.tooltip.startswith(f"{name}:")).click()
    buttons.close()


NODES = {"stop node-0", "isolate node-0", "stop node-1", "isolate node-1"}


def test_buttons_that_do_not_apply_are_disabled(controls):
    story = beginning()
    controls.buttons.update(look(story, now=2.0), over=False)
    workers = {"kill lab-0", "pause lab-0", "kill lab-1", "pause lab-1"}
    assert enabled(controls.buttons) == workers | NODES | {"scale down", "scale up"}

    story.happen(2.1, "Paused", "Pod", "lab-1")
    story.happen(2.2, "Isolated", "Node", "node-0")
    controls.run.replicas = 3
    controls.buttons.update(look(story, now=3.0), over=False)
    assert enabled(controls.buttons) == {
        *("kill lab-0", "pause lab-0", "kill lab-1", "resume lab-1", "scale down"),
        *("reconnect node-0", "stop node-1", "isolate node-1"),
    }
    controls.buttons.update(look(story, now=3.0), over=True)
    assert enabled(controls.buttons) == set()


def test_a_press_does_the_call_that_is_shown_in_a_thread_that_shows_nothing(controls):
    controls.buttons.update(look(beginning(), now=2.0), over=False)
    press(controls.buttons, "kill lab-1")
    assert controls.run.called == [("kill", 1, "dashboard-lab-press")]
    assert controls.run.shown is Progress
    assert controls.buttons.status.value == "<code>run.kill(rank=1)</code> lab-1: killed"
    press(controls.buttons, "scale up")
    assert controls.run.called[-1] == ("scale", 3)
    press(controls.buttons, "stop node-1")
    assert controls.cluster.called == ["node-1"]
    assert "cluster.stop_node(&quot;node-1&quot;)" in controls.buttons.status.value


def test_an_error_is_shown_with_what_to_do(controls):
    controls.buttons.update(look(beginning(), now=2.0), over=False)
    press(controls.buttons, "pause lab-0")
    assert "run.pause(rank=0)" in controls.buttons.status.value
    assert "no process trains as rank 0" in controls.buttons.status.value
    assert "one of 0, 1" in controls.buttons.status.value


def test_a_worker_that_hangs_keeps_its_button_when_the_others_have_gone_on():
    run = Run()
    buttons, story = buttons_of(run, None), beginning()
    story.happen(2.0, "Paused", "Pod", "lab-1")
    story.meet(9.0, 2, ["lab-0"], reason="peer silent", step=3)
    buttons.update(look(story, now=9.5), over=False)
    assert enabled(buttons) >= {"resume lab-1", "kill lab-0"}
    assert "stop node-0" not in enabled(buttons)


def test_a_dashboard_without_any_event_can_be_shown():
    run = Run()
    dashboard = Dashboard(run, states=lambda: iter(()), replicas=run.limits)
    assert dashboard.facts()["figures"][0] == ["world size", "0"]
    assert "no rendezvous yet" in repr(dashboard)
    assert [sorted(output) for output in dashboard.static_view()][0] == ["image/png", "text/plain"]
    view = dashboard.widget()
    assert "ty-lab" in view._dom_classes
