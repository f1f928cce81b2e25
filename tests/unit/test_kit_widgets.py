"""What is drawn: events into curves, merged lines, colours that can be told apart. Pure."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kitlib.display.tables import Table
from kitlib.display.tracebacks import Line
from kitlib.k8s import pods
from kitlib.metrics import curves
from kitlib.metrics.curves import MAX_BUCKETS, MAX_BYTES, MAX_ROWS, TrainingMetrics
from kitlib.metrics.events import Event
from kitlib.widgets import cluster_view, run_view, watch
from kitlib.widgets.cluster_view import ClusterWatch
from kitlib.widgets.plots import DARK, LIGHT, plot_loss, plot_run, style
from kitlib.widgets.run_view import LONGEST, MAX_LINES, LogTail, RunWatch
from kitlib.widgets.widget import STATIC, LiveView
from trainyard_kit.workshop.widget import WorkshopWatch


def step(number, *, rank=0, world=1, value=1.0, **fields):
    return Event("step", float(number), rank, world, {"step": number, "loss": value} | fields)


def test_each_rank_has_a_curve_and_throughput_is_their_sum():
    events = [step(n, rank=r, world=2, images_per_s=10.0 + r) for n in range(3) for r in range(2)]
    frame = TrainingMetrics(events).frame()
    assert frame.ranks == (0, 1)
    assert frame.loss.shape == (2, 3)
    assert frame.rate.tolist() == [21, 21, 21]
    assert frame.world.tolist() == [2, 2, 2]
    assert frame.gpu.shape == (0, 3)


def test_a_rank_that_left_counts_no_more_in_throughput_and_world_size():
    events = [step(n, rank=r, world=4, images_per_s=10) for n in range(3) for r in range(4)]
    events += [step(n, rank=r, world=2, images_per_s=12) for n in range(3, 6) for r in range(2)]
    frame = TrainingMetrics(events).frame()
    assert frame.world.tolist() == [4, 4, 4, 2, 2, 2]
    assert frame.rate.tolist() == [40, 40, 40, 24, 24, 24]
    assert np.isnan(frame.loss[3, 3:]).all()


def test_a_run_that_resumed_from_a_checkpoint_shows_the_later_attempt():
    events = [step(n, value=5.0) for n in range(10)]
    events += [Event("step", 100.0 + n, 0, 1, {"step": n, "loss": 1.0}) for n in range(4, 8)]
    frame = TrainingMetrics(events).frame()
    assert frame.steps.tolist() == list(range(8))
    assert frame.loss[0].tolist() == [5.0] * 4 + [1.0] * 4


def test_a_long_run_of_many_ranks_stays_small_and_no_peak_is_lost():
    training = TrainingMetrics()
    for number in range(100_000):
        training.add(step(number, value=50.0 if number == 61_803 else 1.0, images_per_s=7))
    for rank in range(1, 64):
        for number in range(0, 100_000, 1000):
            training.add(step(number, rank=rank, world=64))
    frame = training.frame()
    assert np.nanmax(frame.loss) == 50.0
    assert 4 * len(frame.steps) * (len(frame.ranks) + 4) <= MAX_BYTES
    assert len(training._rows[0].view) <= MAX_ROWS
    assert frame.steps[-1] >= 99_000
    assert abs(frame.smooth[-1] - 1.0) < 0.01


def test_old_points_stay_where_they_are_while_a_run_goes_on():
    training = TrainingMetrics(step(number, value=math.sin(number)) for number in range(4 * MAX_BUCKETS))
    before = training.frame()
    for number in range(4 * MAX_BUCKETS, 4 * MAX_BUCKETS + 40):
        training.add(step(number, value=math.sin(number)))
    after = training.frame()
    shared = np.isin(after.steps, before.steps[:-2])
    if len(after.steps) > len(before.steps):
        assert np.array_equal(after.loss[0][shared], before.loss[0][:-2])


def test_a_loss_that_is_no_number_leaves_a_hole_and_the_rest():
    events = [step(0), step(1, value=math.nan), step(2, value=math.inf), step(3, value=0.5)]
    events += [
        step(4, value="low"),
        step(5, value=True),
        Event("step", 6.0, 0, 1, {"step": "six", "loss": 1.0}),
    ]
    frame = TrainingMetrics(events).frame()
    assert frame.steps.tolist() == [0, 1, 2, 3]
    assert np.isfinite(frame.smooth).all()
    assert plot_loss(events, title="odd")._repr_png_()


def test_epochs_have_the_mean_over_the_ranks_and_the_accuracy_that_was_evaluated():
    events = [
        Event("epoch", float(r), r, 2, {"epoch": 0, "loss": 1.0 + r, "seconds": 2.0 + r}) for r in range(2)
    ]
    training = TrainingMetrics([*events, Event("eval", 9.0, 0, 2, {"accuracy": 0.75, "synthetic": True})])
    assert training.epochs[0].mean_loss == 1.5
    assert training.epochs[0].seconds == 3.0
    assert training.epochs[0].accuracy == training.accuracy == 0.75
    assert training.synthetic


def test_a_run_without_any_step_can_be_drawn():
    frame = TrainingMetrics().frame()
    assert frame.loss.shape == (0, 0)
    assert plot_run(TrainingMetrics(), title="empty", alt="")._repr_png_()
    assert "no steps" in repr(plot_loss([], title="empty"))


def test_the_merged_log_is_in_the_order_of_time_and_keeps_each_workers_order():
    log_tail = LogTail()
    log_tail.add([(0, Line("2026-01-01T00:00:00Z", "old"))] * (MAX_LINES - 5))
    log_tail.add([(0, Line("2026-01-01T00:00:01Z", "a")), (1, Line("2026-01-01T00:00:03Z", "d"))])
    late = [Line("2026-01-01T00:00:02.5Z", text) for text in ("b", "c", "x" * 1000)]
    log_tail.add((0, line) for line in late)
    assert [row[2][:1] for row in log_tail.rows()[-5:]] == ["a", "b", "c", "x", "d"]
    assert log_tail.rows()[-5][:2] == [0, "00:00:01"]
    assert max(len(row[2]) for row in log_tail.rows()) == LONGEST
    log_tail.add([(2, Line("2026-01-01T00:00:04Z", "e"))])
    assert [row[2][:1] for row in log_tail.rows()[-5:]] == ["b", "c", "x", "d", "e"]
    assert (len(log_tail.rows()), log_tail.total) == (MAX_LINES, MAX_LINES + 1)


def contrast(first, second):
    """Compute the contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_colour_can_be_read_on_its_ground(theme):
    written = (*theme.lines, theme.text, theme.main, theme.good, theme.bad, theme.busy)
    assert min(contrast(colour, theme.ground) for colour in written) >= 4.5


def test_no_two_of_64_ranks_look_alike_and_eight_differ_by_their_dashes_alone():
    assert len({style(rank) for rank in range(64)}) == 64
    assert len({style(rank)[1] for rank in range(8)}) == 8


def test_losses_of_a_validation_are_a_row_of_their_own_at_the_steps_before_them():
    events = [Event("step", n, 0, 1, {"step": 10 * n, "loss": 1.0}) for n in range(3)]
    events += [Event("eval", 3, rank, 2, {"step": 14, "loss": 2.0 + rank}) for rank in range(2)]
    rows = {name: values for name, _, values in run_view.rows_of(TrainingMetrics(events).frame())}
    np.testing.assert_equal(rows["validation"], [np.nan, 2.5, np.nan])
    assert "validation" not in {name for name, _, _ in run_view.rows_of(TrainingMetrics(events[:3]).frame())}


@pytest.mark.parametrize("script", ["run", "cluster", "workshop"])
def test_the_columns_that_the_browser_asks_for_are_those_that_it_is_sent(script):
    kube = SimpleNamespace(cluster="lab", in_namespace=lambda namespace: kube)
    run = RunWatch(SimpleNamespace(name="mine", kube=kube), states=lambda: iter(()))
    run._take([(0, Line("2026-01-01T00:00:00Z", "Epoch 0, Training Loss: 0.5"))])
    run.pods = watch.rows_in(run_view.PODS, [{"pod": "mine-0", "rank": 0, "status": "Running"}])
    view = {"run": run, "cluster": ClusterWatch(kube, minutes=1)}.get(script)
    view = view or WorkshopWatch(kube, minutes=1)
    view.push(browser := LiveView(kind=script))
    assert all(
        len(row) == len(table["columns"]) for table in browser.tables.values() for row in table["rows"]
    )
    program = (STATIC / f"{script}.js").read_text()
    asked = re.findall(r"columnOf\((?:table|tables\.)?(\w*), \"([^\"]+)\"\)", program)
    assert asked
    columns = {name: table["columns"] for name, table in browser.tables.items()}
    assert all(column in columns[name or "epochs"] for name, column in asked), (asked, columns)


def test_a_column_is_hidden_by_its_name_wherever_it_is():
    style = (STATIC / "view.css").read_text()
    assert "nth-child" not in style
    assert re.findall(r'data-column="(\w+)"', style) == ["why"]
    assert "why" in run_view.PODS and "why" in cluster_view.PODS


def test_a_live_view_reads_losses_in_text_until_a_trainer_logs_events():
    watch = run_view.RunWatch(SimpleNamespace(name="mine", kube=None), states=lambda: iter(()))
    texts = ["Epoch 0, Training Loss: 0.5", "Epoch 0, Validation Loss: 9.5", "Epoch 1, Training Loss: 0.25"]
    watch._take([(0, Line("2026-01-01T00:00:00Z", text)) for text in texts])
    assert watch.training.first_and_last_loss() == (0.5, 0.25)
    assert watch.training.validation_losses() == [(0, 9.5)]
    event = '{"event": "step", "time": 1, "rank": 0, "world_size": 1, "step": 7, "loss": 3.0}'
    watch._take([(0, Line("2026-01-01T00:00:01Z", text)) for text in (event, texts[0])])
    assert watch.training.first_and_last_loss() == (3.0, 3.0) and watch.training.last_step == 7


@pytest.mark.parametrize("losses", [[3.0, 1.0, 2.0, 0.5, 0.7, 0.2], [3 - 0.1 * n for n in range(30)]])
def test_the_smoothed_loss_is_pandas_mean_in_both_directions(losses):
    events = [Event("step", float(n), 0, 1, {"step": n, "loss": loss}) for n, loss in enumerate(losses)]
    past = pd.Series(losses).ewm(alpha=curves.WEIGHT).mean()
    later = [past[row : 2 * row + 1][::-1] for row in range(len(past))]
    expected = [rows.ewm(alpha=curves.WEIGHT).mean().iloc[-1] for rows in later]
    smooth = TrainingMetrics(events).frame().smooth
    np.testing.assert_allclose(smooth, expected, rtol=1e-4)
    assert smooth[0] == losses[0]
    assert len(losses) < 30 or abs(smooth[15] - losses[15]) < 0.001


def test_a_view_shows_the_steps_that_are_done_and_all_of_them():
    fields = {"step": 9, "loss": 0.5}
    watch = RunWatch(
        SimpleNamespace(name="digits", kube=SimpleNamespace(cluster="lab")), states=lambda: iter(())
    )
    for event in (Event("start", 1.0, 0, 1, {"steps": 40}), Event("step", 2.0, 0, 1, fields)):
        watch.progress.add(event)
    position = watch._position()
    assert position["share"] == 9 / 40
    assert position["position"].startswith("9 of 40 steps, ")


def test_workers_beside_parameter_servers_have_their_names_in_legend_and_table():
    training = TrainingMetrics([step(n, rank=r, world=2, role="worker") for n in range(2) for r in (0, 1)])
    training.add(step(2, rank=1, world=2, role="<b>" * 99))
    picture = plot_loss([step(0, rank=r, world=2, role="worker") for r in (0, 1)], title="mnist")
    assert [text.get_text() for text in picture.figure.axes[0].get_legend().get_texts()][:2] == [
        "worker-0",
        "worker-1",
    ]
    view = RunWatch(
        SimpleNamespace(name="mnist", kube=SimpleNamespace(cluster="lab")), states=lambda: iter(())
    )
    view.training = training
    assert view.facts()["names"] == {0: "worker-0", 1: "worker-1"}
    assert [row[0] for row in view._tables()["latest"].rows] == ["worker-0", "worker-1"]
    view.training = TrainingMetrics([step(0)])
    assert view.facts()["names"] == {0: "rank 0"}


class Idle(RunWatch):
    """A watch whose threads wait for its stop."""

    def work(self):
        return {"idle": self.stopping.wait}


def test_a_watch_that_was_stopped_stays_so_where_it_is_shown_again(monkeypatch):
    monkeypatch.setattr(watch, "in_notebook", lambda: True)
    monkeypatch.setattr(watch, "NotebookDisplay", lambda shown: None)
    kube = SimpleNamespace(cluster="lab")
    with Idle(SimpleNamespace(name="mine", kube=kube), states=lambda: iter(())) as idle:
        idle._ipython_display_()
        assert not idle.finished
        idle.stop()
        idle._ipython_display_()
        idle._on_view(None, {"event": "opened", "view": "1"}, [])
        assert idle.finished
        assert not idle.start().finished
        idle.stopping.set()  # as when its last view was closed
        idle.join()
        assert idle.finished
        idle._on_view(None, {"event": "opened", "view": "2"}, [])
        assert not idle.finished


def test_the_last_table_of_a_run_that_succeeded_has_its_pods_as_they_ended():
    """The watch of the Job may be ahead of that of its pods."""
    running = {
        "metadata": {"name": "mine-0", "namespace": "default"},
        "spec": {},
        "status": {"phase": "Running"},
    }
    ended = running | {"status": {"phase": "Succeeded"}}
    run = SimpleNamespace(
        name="mine",
        kube=SimpleNamespace(cluster="lab"),
        events=lambda: Table(("age",), []),
        pods=lambda: pods.table([ended]),
    )
    status = SimpleNamespace(phase="Succeeded", finished=True)
    shown = RunWatch(run, states=lambda: iter([({"Pod": {"mine-0": running}}, status)]))
    shown._follow()
    assert [row[2] for row in shown.pods] == ["Completed"]
