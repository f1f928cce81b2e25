"""How the steps at a cloud are shown: where somebody looks at a notebook, where nobody does, and in a log."""

import logging

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from clouds.reconciler.snapshot import Phase, ReconcileStep, Snapshot, duration
from clouds.reconciler.steps_table import StepsTable, html
from kitlib.display.progress import shown_elsewhere

NETWORK = ReconcileStep("network", "AWS::EC2::VPC", Phase.DONE, "ready", "", 5, 4)
CLUSTER = ReconcileStep("cluster", "AWS::EKS::Cluster", Phase.RUNS, "being made", "CREATING <b>", 540, 100)
NODES = ReconcileStep("nodes", "AWS::EKS::Nodegroup", Phase.WAITS, "waits for cluster", "", 180)


def snapshot(*steps, seconds=104.0, over=False):
    return Snapshot("cluster lab", "create", steps or (NETWORK, CLUSTER, NODES), seconds, 620, over)


def test_a_line_says_what_is_done_what_is_at_work_and_how_long_it_takes():
    said = "1 of 3 steps done after 1 min 44 s; at work: cluster; about 10 min 20 s to go"
    assert str(snapshot()) == said


def test_the_table_has_the_times_that_were_expected_and_that_were_taken():
    rows = list(snapshot().table())
    assert rows[0] | {"state": "ready", "expected": "5 s", "took": "4 s"} == rows[0]
    assert rows[2] | {"state": "waits for cluster", "expected": "3 min", "took": None} == rows[2]


def test_durations_are_in_minutes_from_one_minute_on():
    assert [duration(each) for each in (0.2, 59.4, 60, 540, 545)] == [
        "0 s",
        "59 s",
        "1 min",
        "9 min",
        "9 min 5 s",
    ]


def test_what_a_cloud_says_is_shown_as_text_and_never_as_markup():
    shown = html(snapshot())
    assert "CREATING &lt;b&gt;" in shown
    assert "<b>CREATING" not in shown
    assert "width:19%" in shown  # 100 of 540 seconds


def test_in_a_log_each_step_is_a_line_when_it_ends(caplog):
    caplog.set_level(logging.INFO, logger="trainyard")
    failed = ReconcileStep("cluster", "AWS::EKS::Cluster", Phase.FAILED, "failed", "no room", 540, 200)
    with shown_elsewhere(), StepsTable("cluster lab") as report:
        report(snapshot())
        report(snapshot(seconds=105))
        report(snapshot(NETWORK, failed, NODES, over=True))
    assert [each.getMessage() for each in caplog.records] == [
        "cluster lab: ✓ network: ready after 4 s, expected 5 s",
        "cluster lab: ✗ cluster: failed after 3 min 20 s, expected 9 min: no room",
        caplog.records[-1].getMessage(),
    ]
    assert "failed: cluster" in caplog.records[-1].getMessage()


def test_an_executed_notebook_keeps_the_last_table_as_one_output(tmp_path):
    source = """
from clouds.reconciler.snapshot import Phase, ReconcileStep, Snapshot
from clouds.reconciler.steps_table import StepsTable
with StepsTable("cluster lab") as report:
    for seconds in range(5):
        phase = Phase.DONE if seconds == 4 else Phase.RUNS
        step = ReconcileStep("cluster", "AWS::EKS::Cluster", phase, "ready", "", 3, seconds)
        report(Snapshot("cluster lab", "create", (step,), seconds, 0, phase is Phase.DONE))
"""
    notebook = new_notebook(cells=[new_code_cell(source)])
    NotebookClient(notebook, timeout=120, startup_timeout=300).execute()
    (output,) = nbformat.from_dict(notebook).cells[0].outputs
    assert "1 of 1 steps done after 4 s" in output.data["text/plain"]
    assert "<table>" in output.data["text/html"]
