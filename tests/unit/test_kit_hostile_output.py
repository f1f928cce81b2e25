"""What a pod prints can be anything: the views of a run neither raise nor stall, nor interpret it."""

import contextlib
import io
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import urllib3
from matplotlib.figure import Figure
from matplotlib.text import Text

from kitlib.causes import Facts, causes
from kitlib.display import tracebacks
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.k8s import client, logs
from kitlib.metrics.curves import TrainingMetrics
from kitlib.metrics.events import Event, parse_line
from kitlib.metrics.log_format import format_line
from kitlib.metrics.placement import Placement
from kitlib.metrics.run_progress import RunProgress
from kitlib.runs.follower import _PODS
from kitlib.widgets.plots import Picture, plot_loss, plot_placement, plot_run
from kitlib.widgets.run_view import LogTail, RunWatch
from tests.unit.cpu_seconds import cpu_seconds
from trainyard_kit.elastic_lab.disruptions import _SIZES
from trainyard_kit.elastic_lab.speed_up import step_time
from trainyard_kit.elastic_lab.timeline import build
from trainyard_kit.elastic_lab.worker_states import WorkerLog
from trainyard_kit.program_output import LossEvents, parse_text
from trainyard_kit.workshop import attendee_status

TIME = "2026-01-01T00:00:00Z"
MEGABYTE, LONG = 2**20, 2**16
VALUES = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e308",
    "1e308",
    "9" * 5000,
    "0." + "7" * 5000,
    "-" + "9" * 400,
    "true",
    "null",
    '"$x^2$"',
    '"\\ud800"',
    '"<img src=x onerror=alert(1)>"',
    "[]",
    "{}",
    "[1,[2]]",
    "-1",
    "1e18",
    '"' + "x" * 100_000 + '"',
    "[" * 900 + "]" * 900,
]
FIELDS = (
    "time",
    "rank",
    "world_size",
    "step",
    "steps",
    "epoch",
    "epochs",
    "loss",
    "accuracy",
    "images_per_s",
    "gpu_percent",
    "seconds",
    "percent",
    "role",
    "synthetic",
    "round",
    "pid",
    "source",
    "leader",
    "reason",
    "samples",
    "batch_size",
    "ms_per_image",
    "event",
)
KINDS = ("start", "step", "epoch", "eval", "end", "rendezvous", "progress", "resume", "simulated_accelerator")
# Of each a line of LONG characters is printed: quadratic in so many is more than a minute.
UNITS = tomllib.loads((Path(__file__).parent / "hostile_units.toml").read_text(encoding="utf-8"))["units"]


def event_line(kind, **fields):
    body = {
        "event": json.dumps(kind),
        "time": "1.5",
        "rank": "0",
        "world_size": "2",
        "step": "1",
        "epoch": "1",
    } | fields
    return "{" + ", ".join(f'"{name}": {value}' for name, value in body.items()) + "}"


def hostile_lines():
    for kind in KINDS:
        for field in FIELDS:
            for value in VALUES:
                yield event_line(kind, **{field: value})


def watch():
    run = SimpleNamespace(name="run", kube=SimpleNamespace(cluster="c"))
    return RunWatch(run, states=lambda: iter([]))


def test_no_value_in_an_event_breaks_a_runs_view():
    view = watch()
    lines = [event_line("step", step=str(number), loss="0.5") for number in range(3)] + list(hostile_lines())
    with cpu_seconds(60):
        for line in lines:
            view._take([(0, Line(TIME, line))])
        view.log_tail.rows()
        view.facts(), view._position(), view._tables(), view.summary(), view.training.frame()
        assert all((view.progress.figures, view.progress.count, view.progress.share))
        assert view.picture()._repr_png_()
        assert json.dumps(view._position(), allow_nan=False)
    assert view.training.last_step is not None


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:20])
def test_no_value_in_an_event_breaks_a_timeline_or_a_speed_up(value):
    events = [parse_line(event_line(kind, **{field: value})) for kind in KINDS for field in FIELDS]
    known = [event for event in events if event is not None]
    log = WorkerLog("worker", "node-0", known) if known else None
    timeline = build("run", [log] if log else [], [], now=10.0)
    assert repr(timeline)
    good = [Event("start", 0.0, 0, 1, {"batch_size": 8})]
    good += [Event("step", float(n), 0, 1, {"step": n, "epoch": 0}) for n in range(3)]
    with contextlib.suppress(BadInput):
        assert step_time([*good, *(event for event in known if event.event == "step")], run="run").seconds > 0


def test_ranks_and_epochs_without_end_take_bounded_memory():
    training, progress = TrainingMetrics(), RunProgress()
    for number in range(20_000):
        for kind in ("step", "epoch"):
            line = event_line(kind, rank=str(number % 4096), epoch=str(number), role=f'"r{number}"', loss="1")
            event = parse_line(line)
            training.add(event)
            progress.add(event)
    assert len(training.ranks) <= 512
    assert len(training.epochs) <= 4096
    assert len(progress._ranks) <= 4096
    assert parse_line(event_line("step", rank="123456789")) is None


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_a_long_line_is_read_in_linear_time(unit):
    line = Line(TIME, unit * (LONG // len(unit)))
    heads = [Line(TIME, text) for text in ("epoch\tloss", "epoch | loss", "epoch, loss", "epoch  loss")]
    with cpu_seconds(3):
        for head in heads:
            reader = LossEvents(0)
            list(reader.read(head, world=1))
            list(reader.read(line, world=1))
        list(LossEvents(0).read(Line(TIME, f"loss 1 {line.text}"), world=1))
        format_line(line.text)
        tail = LogTail()
        tail.add([(0, line)] * 10)
        tail.rows()
        frames = [
            Line(TIME, text) for text in (tracebacks._HEAD, '  File "x", line 1, in y', "device-side assert")
        ]
        tracebacks.find([line, *frames, line, Line(TIME, "  + Exception Group"), line])
        causes(Facts(logs={0: [Line(TIME, "Root Cause (first observed failure):"), line]}, phase="Failed"))
        _PODS.sub("", line.text)
        _SIZES.search(line.text)


def test_thousands_of_assertions_on_a_device_are_searched_once():
    failed = [
        Line(TIME, text) for text in (tracebacks._HEAD, '  File "x", line 1, in y', "E: device-side assert")
    ]
    with cpu_seconds(10):
        assert len(tracebacks.find(failed * 20_000)) == 20_000


def test_numbers_of_a_readers_expression_may_have_any_number_of_digits():
    lines = {0: [Line(TIME, f"accuracy {'9' * 5000}"), Line(TIME, "accuracy nan")]}
    events = parse_text(lines, r"accuracy (?P<accuracy>\S+)")
    training = TrainingMetrics(events)
    assert training.accuracy is None
    assert len(events) == 2


@pytest.mark.parametrize("chunks", [64, 4096])
def test_a_line_without_end_is_read_in_bounded_memory(chunks, monkeypatch):
    monkeypatch.setattr(client, "LONGEST_LINE", MEGABYTE)

    class Endless(io.RawIOBase):
        left = chunks

        def readable(self):
            return True

        def readinto(self, buffer):
            if not self.left:
                return 0
            self.left -= 1
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    stream = client.Stream(urllib3.HTTPResponse(io.BufferedReader(Endless(), 2**16), preload_content=False))
    with cpu_seconds(10):
        assert list(stream) == []
    assert len(stream.rest) <= MEGABYTE + 2**16


def test_lines_without_a_time_are_read_as_well():
    text = "unable to retrieve container logs\n2026-01-01T00:00:00.5Z loss 0.5\ntorn"
    lines = list(logs._lines(text.split("\n")))
    assert [line.text for line in lines] == ["unable to retrieve container logs", "loss 0.5", "torn"]
    events = [event for line in lines for event in LossEvents(0).read(line, world=1)]
    assert [event.fields["loss"] for event in events] == [0.5]


LABELS = [
    "$x^2$",
    r"\$x$",
    "$\\frac{1}{0}$",
    "$" * 5,
    "a$b$c",
    "<script>",
    "x" * 100_000,
    "a\nb\0\x1b[31m",
    "\ud800",
    "$\\",
]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: ascii(label[:20]))
def test_a_pictures_labels_are_never_interpreted(label):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], label=label)
    axes.set(title=label, xlabel=label)
    axes.text(0, 0, label)
    axes.annotate(label, (0, 0))
    axes.legend()
    picture = Picture(figure, label)
    assert picture._repr_png_()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert not any(text.get_parse_math() for text in texts)
    assert all(len(text.get_text()) <= 200 for text in texts)


@pytest.mark.parametrize("label", LABELS[2:9:2], ids=lambda label: ascii(label[:20]))
def test_names_of_runs_and_nodes_are_drawn_as_they_are(label):
    placement = Placement(["node-0"])
    placement.add_loss(label, 1.0, 0.5)
    assert plot_placement(placement, title=label, alt=label, began=0.0, now=2.0)._repr_png_()
    training = TrainingMetrics([Event("step", 1.0, 0, 1, {"step": 1, "loss": 1.0})])
    assert plot_run(training, title=label, alt=label)._repr_png_()
    assert plot_loss([Event("step", 1.0, 0, 1, {"step": 1, "loss": 1.0})], title=label)._repr_png_()


def test_an_attendees_progress_never_raises():
    for value in VALUES:
        for field in ("cell", "of", "state", "error", "at"):
            text = '{"cell": 1, "of": 2, "state": "done", "at": "2026-01-01T00:00:00+00:00"}'
            body = json.loads(text)
            raw = ", ".join(
                f'"{name}": {value if name == field else json.dumps(known)}' for name, known in body.items()
            )
            attendee_status.read({"01_x": "{" + raw + "}"})
    with cpu_seconds(5):
        attendee_status.read({f"n{number}": "[" * 100_000 for number in range(100)})
