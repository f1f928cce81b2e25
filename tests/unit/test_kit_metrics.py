import math

import pytest

from kitlib.metrics import events

STEP = '{"event":"step","time":2.5,"rank":1,"world_size":4,"loss":0.5}'


def test_an_event_is_parsed_behind_torchruns_prefix():
    event = events.parse_line(STEP)
    assert (event.event, event.time, event.rank, event.world_size) == ("step", 2.5, 1, 4)
    assert event.fields == {"loss": 0.5}
    assert events.parse_line("[default0]:" + STEP) == event
    assert math.isnan(events.parse_line(STEP.replace("0.5", "NaN")).fields["loss"])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 1 begins",
        STEP[:-10],
        "[1, 2]",
        "{}",
        '{"event": 3, "time": 1, "rank": 0, "world_size": 1}',
        '{"event": "step", "time": NaN, "rank": 0, "world_size": 1}',
        '{"event": "step", "time": 1, "rank": -1, "world_size": 1}',
        '{"event": "step", "time": 1, "rank": 0.5, "world_size": 1}',
        '{"event": "step", "time": 1, "rank": true, "world_size": 1}',
        '{"event": "step"}' + STEP,
        "{" * 100_000,
    ],
)
def test_lines_that_are_for_people_or_torn_are_skipped(line):
    assert events.parse_line(line) is None


def test_rows_are_in_order_of_time_and_may_be_of_one_kind():
    lines = [STEP, STEP.replace("2.5", "1.5"), STEP.replace("step", "end")]
    assert [row["time"] for row in events.rows(events.parse(lines), "step")] == [1.5, 2.5]
    assert len(events.rows(events.parse(lines))) == 3
