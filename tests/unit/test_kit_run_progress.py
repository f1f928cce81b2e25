"""How far a run is, from its events, and what the terminal shows of it."""

import json

import pytest

from kitlib.display.tracebacks import Line
from kitlib.metrics import events as metrics
from kitlib.metrics.run_progress import RunProgress
from trainyard_kit.cli.follow import LinePrinter


def line(event, rank=0, world_size=2, **fields):
    return json.dumps({"event": event, "time": 1.5, "rank": rank, "world_size": world_size} | fields)


def progress_of(*lines):
    progress = RunProgress()
    for event in metrics.parse(lines):
        progress.add(event)
    return progress


def steps(*counts, **fields):
    return [line("step", rank, step=count, **fields) for rank, count in enumerate(counts)]


def test_the_slowest_rank_counts_and_a_total_comes_from_the_trainer():
    progress = progress_of(line("start", steps=375), *steps(140, 120))
    assert progress.position == (120, 375, "steps")
    assert progress.count == "120/375 steps"


def test_where_nobody_says_a_total_there_is_none():
    assert progress_of(*steps(140, 120)).position == (120, None, "steps")
    assert progress_of(*steps(140, 120)).count == "120 steps"
    assert progress_of(line("epoch", epoch=2)).count == "3 epochs"
    assert progress_of().position == (0, None, "steps")


def test_epochs_are_counted_where_the_number_of_steps_is_not_known():
    progress = progress_of(line("start", epochs=10), *steps(140, 120, epoch=3))
    assert progress.position == (3, 10, "epochs")


def test_the_steps_of_one_epoch_are_not_taken_for_those_of_the_run():
    events = [line("start", steps=36), *steps(3, 3), line("epoch", epoch=0, steps=12)]
    assert progress_of(*events).position[1] == 36


def test_a_rank_that_left_does_not_hold_the_bar():
    progress = progress_of(line("start", steps=375), *steps(50, 50, 40), *steps(100, 100))
    assert progress.position[0] == 100


def test_a_run_that_goes_back_to_a_checkpoint_goes_back_on_the_bar():
    assert progress_of(*steps(100, 100), *steps(80, 80)).position[0] == 80


def test_the_end_is_all_of_it():
    progress = progress_of(*steps(370, 370), line("end", 0, steps=375), line("end", 1, steps=375))
    assert progress.position == (375, 375, "steps")


def test_steps_of_workers_that_do_not_wait_for_each_other_are_added_up():
    assert progress_of(*steps(100, 50, role="worker")).position == (150, None, "steps")


def test_the_percent_of_a_preparation_is_its_bar():
    assert progress_of(line("progress", percent=45.5)).count == "45.5 %"


def test_loss_is_the_mean_and_the_rate_the_sum_over_the_ranks():
    events = (
        line("step", rank, step=1, loss=loss, images_per_s=602.0) for rank, loss in enumerate((0.4, 0.6))
    )
    assert progress_of(*events).figures == "loss 0.5  1,204 images/s"
    assert "loss nan" in progress_of('{"event":"step","time":1,"rank":0,"world_size":1,"loss":NaN}').figures


@pytest.mark.parametrize("output", ["text", "json"])
def test_programs_get_the_json_as_it_was_written_and_people_get_words(capsys, output):
    written = '{"event":"step", "time":1.5,"rank":1,"world_size":2,"loss":0.123456789}'
    lines = LinePrinter("digits", only=None, output=output)
    for text in ("it begins", written, "[default0]:" + written):
        lines.add(1, Line("", text))
    out, err = capsys.readouterr()
    if output == "json":
        assert out == f"{written}\n{written}\n"
        assert err == "[rank 1] it begins\n"
    else:
        assert out.splitlines()[:2] == ["[rank 1] it begins", "[rank 1] step  loss 0.1235"]
        assert err == ""
