"""Lines of logs as people read them, whatever a pod has written."""

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitlib.display.tables import Text, printable
from kitlib.display.tracebacks import Line
from kitlib.metrics.log_format import format_line, json_of, number
from kitlib.runs.logs import Log


def line(event, **fields):
    return json.dumps({"event": event, "time": 1.5, "rank": 2, "world_size": 4} | fields)


STEP = line("step", step=140, epoch=3, loss=0.43123456, images_per_s=1203.7)
PIXELS = [{"pixels": [0.1234567890123456] * 64, "label": 3}] * 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (STEP, "rank 2  epoch 3  step 140  loss 0.4312  1,204 images/s"),
        (line("step", step=140, steps=375, epoch=3, epochs=10), "rank 2  epoch 3/10  step 140/375"),
        (line("epoch", epoch=3, loss=1.5, seconds=12.3456), "rank 2  epoch 3 done  loss 1.5  12.35 s"),
        (line("eval", accuracy=0.97421, correct=351), "rank 2  eval  accuracy 97.42 %  correct=351"),
        (line("eval", sample=PIXELS), "rank 2  eval  sample=260 values"),
        (
            line("start", dataset="digits", pid=12345),
            "rank 2  start  world_size=4 dataset=digits pid=12345",
        ),
        (line("lost", role="worker", reason="no answer"), 'worker-2  lost  reason="no answer"'),
        (line("start", role="master", rank=0, tasks=9), "master  start  world_size=4 tasks=9"),
        (line("progress", doing="unpacking", percent=None), "rank 2  progress  doing=unpacking"),
        (line("pair", shape=[2, 0.33333], of={"a": None}), "rank 2  pair  shape=[2, 0.3333] of={a=null}"),
        ("[default0]:" + line("step", step=1), "[default0]: rank 2  step 1"),
        ('{"level": "info", "msg": "leader elected"}', 'level=info msg="leader elected"'),
    ],
)
def test_an_event_is_a_line_of_words(line, words):
    assert format_line(line) == words


@pytest.mark.parametrize("line", ["", "Epoch 1 begins", STEP[:-10], 'got {"a": 1}', "{}", "[1]", "\tat main"])
def test_a_line_that_is_no_event_is_unchanged(line):
    assert format_line(line) == line
    assert json_of(line) == ""


def test_a_line_does_not_repeat_the_rank_of_its_pod():
    assert format_line(STEP, pod="rank 2").startswith("epoch 3  step 140")
    assert format_line(STEP, pod="rank 1").startswith("rank 2  epoch 3")  # two processes in a pod


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;your title\x07text", "text"),
        ("\x1b\x1b[31m[2Jtwice", "\\x1b[2Jtwice"),
        ("\x9b2J of one byte\x08\x08", "\\x9b2J of one byte\\x08\\x08"),
        ("left\u202eto right", "left\\u202eto right"),
        ("10 %\r20 %\r", "20 %"),
    ],
)
def test_a_pod_does_not_move_the_cursor_of_who_reads_its_log(written, shown):
    assert format_line(written) == shown
    words = format_line(line(written, **{written: written}))
    assert printable(words) == words


def harmless(text):
    return all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") or char == "\t" for char in text)


TEXT = st.text(st.characters(exclude_categories=())) | st.from_regex(r"\A\x1b[\[\]PX][0-9;]*.{0,3}\Z")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda values: st.lists(values) | st.dictionaries(TEXT, values),
)
KEYS = ["event", "rank", "world_size", "role", "step", "steps", "epoch", "epochs", "loss", "accuracy"]


@given(TEXT)
def test_no_text_is_fatal_or_harmful(text):
    assert harmless(format_line(text))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS) | TEXT, JSON), TEXT, st.integers(0, 10_000))
def test_no_json_is_fatal_or_harmful(body, kind, end):
    for ascii_only in (True, False):
        line = json.dumps({"event": kind} | body, ensure_ascii=ascii_only)
        for text in (line, line[:end]):  # whole, and torn
            shown = format_line(text)
            assert harmless(shown)
            shown.encode()


def test_a_deep_nest_is_counted():
    assert format_line('{"event": "x", "deep": ' + "[" * 400 + "1" + "]" * 400 + "}") == "x  deep=1 value"
    assert format_line('{"a": ' + "[" * 100_000).startswith('{"a": [[[')


@pytest.mark.parametrize(
    ("value", "words"),
    [(9999.6, "10,000"), (0.00001234, "1.234e-05"), (76234, "76234"), (2.0, "2"), (1e20, "1e+20")],
)
def test_numbers_have_four_digits(value, words):
    assert number(value) == words


def test_a_log_shows_words_and_is_the_text_that_was_written():
    log = Log([(2, Line("", STEP)), ("ps-1", Line("", "ready"))])
    assert log == f"[rank 2] {STEP}\n[ps-1] ready"
    assert repr(log) == "[rank 2] epoch 3  step 140  loss 0.4312  1,204 images/s\n[ps-1] ready"
    assert repr(Log([(2, Line("", STEP))], only=2)) == format_line(STEP)
    assert repr(Log([], note="(no output yet. Pending)")) == "(no output yet. Pending)"


@pytest.mark.parametrize(("line", "count"), [("loss 0.5 " * 8, 50_000), ("x" * 3_000_000, 1), (STEP, 20_000)])
def test_a_cell_shows_the_end_of_a_long_log_and_its_text_is_whole(line, count):
    log = Log([(0, Line("", f"{line} {number}")) for number in range(count)])
    shown = repr(log)
    assert len(shown) < 300_000
    assert len(shown.splitlines()) <= 1001
    assert len(repr(Text(str(log))).splitlines()) <= 1001 and len(repr(Text(str(log)))) < 500_000
    assert str(log).count(line) == count
    if count > 1000:
        assert (
            shown.splitlines()[0] == f"… {count - 1000:,} earlier lines; print(run.logs()) shows all of them"
        )
