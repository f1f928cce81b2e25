"""What a rehearsal reads from a run's result, and how its times stand beside the last one's."""

import json

import pytest

from kitlib.errors import BadInput
from trainyard_kit.workshop import notebook_rehearsal

PLACE = {"cores": 2}


def result(**verdicts):
    notebooks = [
        {"name": name, "verdict": verdict, "seconds": 0 if verdict == "not executed" else 10.0}
        for name, verdict in verdicts.items()
    ]
    return {"seconds": 35.0, "notebooks": notebooks}


def test_time_outside_notebooks_is_the_clusters():
    outcome = notebook_rehearsal.summarize(result(a="passed", b="passed"), place=PLACE, before={})
    assert outcome.seconds == {"a": 10.0, "b": 10.0, "cluster": 15.0}
    assert outcome.passed


@pytest.mark.parametrize("verdict", ["failed", "not finished", "not executed"])
def test_one_notebook_that_does_not_pass_is_enough_not_to_be_ready(verdict):
    outcome = notebook_rehearsal.summarize(result(a="passed", b=verdict), place=PLACE, before={})
    assert not outcome.passed
    assert "NOT READY" in repr(outcome.table)


@pytest.mark.parametrize(("verdict", "whole"), [("failed", True), ("not executed", False)])
def test_a_rehearsal_that_was_cut_short_is_no_measure_for_the_next(verdict, whole):
    assert (
        notebook_rehearsal.summarize(result(a="passed", b=verdict), place=PLACE, before={}).complete == whole
    )


def test_the_next_rehearsal_reads_the_saved_times(tmp_path):
    path = tmp_path / notebook_rehearsal.TIMES_FILE
    assert notebook_rehearsal.read(path) == {}
    path.write_text("not json")
    assert notebook_rehearsal.read(path) == {}
    outcome = notebook_rehearsal.summarize(result(a="passed"), place=PLACE, before={})
    path.write_text(json.dumps(outcome.as_dict()))
    assert notebook_rehearsal.read(path) == outcome.seconds


def test_a_notebook_that_does_not_exist_is_named_by_the_runner_and_nothing_is_kept(tmp_path, capfd):
    with pytest.raises(BadInput, match="were not run"):
        notebook_rehearsal.rehearse(["99"], folder=tmp_path)
    assert "there is no notebook 99" in capfd.readouterr().err
    assert not (tmp_path / notebook_rehearsal.TIMES_FILE).exists()
