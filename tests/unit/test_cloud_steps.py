"""The steps of an operation at a cloud: in a log, in an executed notebook, and where somebody looks."""

import logging

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from kitlib.display.progress import shown_elsewhere
from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.steps import Phase, Steps, duration

from .made_up_cloud import SimulatedClock

USUAL = {"network": 20, "cluster": 540, "file system": 30}


def expecting(title, clock):
    steps = Steps(title, clock)
    with shown_elsewhere():
        for name, seconds in USUAL.items():
            steps.update(name, Phase.WAITING, usual=seconds)
    return steps


def work(steps):
    """A network that is there after 4 seconds, and a cluster that fails."""
    with steps.step("network"):
        steps.sleep(4)
    with steps.step("cluster", "CREATING <b>"):
        steps.sleep(200)
        raise ProviderFailed("no room", about="the cluster", fix="wait")


def test_in_a_log_each_step_is_a_line_when_it_ends(caplog):
    caplog.set_level(logging.INFO, logger="trainyard")
    with shown_elsewhere(), pytest.raises(ProviderFailed), expecting("lab", SimulatedClock()) as steps:
        work(steps)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == [
        "lab: ✓ network: done after 4 s",
        "lab: ✗ cluster: failed after 3 min 20 s: no room",
    ]
    assert "1 of 3 steps done after 3 min 24 s; failed: cluster" in messages[2] and len(messages) == 3


def test_the_table_has_usual_and_actual_durations_and_what_waits():
    steps = expecting("lab", SimulatedClock())
    with shown_elsewhere(), pytest.raises(ProviderFailed):
        work(steps)
    rows = [list(row.values()) for row in steps.table()]
    assert rows[0][:4] == ["network", "done", "20 s", "4 s"]
    assert rows[1][:4] == ["cluster", "failed", "9 min", "3 min 20 s"]
    assert rows[2][:4] == ["file system", "waiting", "30 s", None]


def test_a_step_done_twice_keeps_its_first_end():
    clock = SimulatedClock()
    steps = expecting("lab", clock)
    with shown_elsewhere():
        steps.update("network", Phase.RUNNING)
        clock.sleep(5)
        steps.update("network", Phase.DONE)
        clock.sleep(60)
        steps.update("network", Phase.DONE)
        assert steps.steps[0].took(clock.now()) == 5
        steps.update("network", Phase.RUNNING)
        clock.sleep(10)
    assert steps.steps[0].took(clock.now()) == 75


def test_a_clouds_messages_are_text_and_never_markup():
    clock = SimulatedClock()
    steps = expecting("<lab>", clock)
    with shown_elsewhere():
        steps.update("cluster", Phase.RUNNING, "CREATING <b>")
        clock.sleep(100)
    shown = steps._html()
    assert "CREATING &lt;b&gt;" in shown and "&lt;lab&gt;" in shown and "<b>CREATING" not in shown
    assert "width:19%" in shown  # 100 of 540 seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min"), (540, "9 min"), (545, "9 min 5 s")]
)
def test_durations_are_in_minutes_from_one_minute_on(seconds, text):
    assert duration(seconds) == text


def test_an_executed_notebook_keeps_the_last_table_as_one_output():
    source = """
from trainyard_kit.clouds.steps import Phase, Steps
from tests.unit.made_up_cloud import SimulatedClock
with Steps("cluster lab", SimulatedClock()) as steps:
    steps.update("cluster", Phase.WAITING, usual=540)
    for name in ("network", "cluster"):
        with steps.step(name):
            steps.sleep(30)
"""
    notebook = new_notebook(cells=[new_code_cell(source)])
    NotebookClient(notebook, timeout=120, startup_timeout=300).execute()
    (output,) = nbformat.from_dict(notebook).cells[0].outputs
    assert "2 of 2 steps done after 1 min" in output.data["text/plain"]
    assert "<table>" in output.data["text/html"] and "9 min" in output.data["text/html"]
