"""Watching runs and clusters: what comes and goes is seen, threads end, and a cut log loses nothing."""

import contextlib
import os
import socket
import threading

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from kitlib.widgets.widget import LiveView

from ..patience import PATIENCE, until
from ..rows import slow
from .ranks import component

pytestmark = pytest.mark.cluster

TRAINER = """
import json, os, sys, time
rank, steps = int(os.environ["NODE_RANK"]), {steps}
for step in range(steps):
    event = {{"event": "step", "time": time.time(), "rank": rank, "world_size": 2, "step": step}}
    print(json.dumps(event | {{"loss": 1 / (1 + step), "images_per_s": 50, "gpu_percent": 10 * rank}}))
    print("for people", step, flush=True)
    time.sleep({pause})
print(json.dumps({{"event": "eval", "time": time.time(), "rank": rank, "world_size": 2, "accuracy": 0.5}}))
"""


def test_an_executed_notebook_has_picture_and_table_of_the_end_and_no_widget(launch, plain, local_cluster):
    """As papermill and nbval run it: nobody looks, and the cell that watches ends before the run does."""
    run = launch(plain(TRAINER.format(steps=20, pause=0.05)))
    cells = (
        f"import kitlib as kit\nrun = kit.connect({local_cluster.name!r}).run({run.name!r})\nrun.watch()",
        "done = run.wait(timeout=120)",
    )
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel})
    NotebookClient(notebook, timeout=120, startup_timeout=300, kernel_name="python3").execute()
    picture, table = (output.data for output in notebook.cells[0].outputs)
    assert set(picture) == {"image/png", "text/plain"}
    assert "Succeeded" in picture["text/plain"]
    assert "step 19" in picture["text/plain"]
    assert table["text/plain"].count("Completed") == table["text/html"].count("Completed") == 2
    assert "widgets" not in notebook.metadata
    assert len(nbformat.writes(notebook)) < 200_000


def threads():
    names = ("watch-", "log-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def ended(watch):
    watch.join(PATIENCE)
    return watch.finished


def test_a_watch_sees_all_that_a_run_does_and_ends_by_itself(launch, plain):
    run = launch(plain(TRAINER.format(steps=30, pause=0.05)))
    with run.watch() as watch:
        view = watch.view()
        assert isinstance(view, LiveView)
        assert ended(watch)
    assert not threads()
    assert view.facts["phase"] == "Succeeded"
    assert view.facts["finished"]
    assert dict(view.facts["figures"]) | {"step": "29", "world size": "2", "accuracy": "50.00%"} == dict(
        view.facts["figures"]
    )
    frame = watch.training.frame()
    assert frame.loss.shape == frame.gpu.shape == (2, 30)
    assert frame.rate.tolist() == [100.0] * 30
    assert len(view.frame) == 4 * view.layout_of_frame["columns"] * len(view.layout_of_frame["rows"])
    assert [row[:1] + row[2:3] for row in view.tables["pods"]["rows"]] == [[0, "Completed"], [1, "Completed"]]
    assert any("Created pod" in row[2] for row in view.tables["events"]["rows"])
    for rank in (0, 1):
        mine = [row[2] for row in view.lines if row[0] == rank and row[2].startswith("for people")]
        assert mine == [f"for people {number}" for number in range(30 - len(mine), 30)]
    assert "Succeeded" in repr(watch)
    assert watch.picture()._repr_png_().startswith(b"\x89PNG")


def test_a_run_that_ended_long_ago_is_shown_whole_by_two_watches_at_once(launch, plain, local_cluster):
    run = launch(plain(TRAINER.format(steps=5, pause=0)))
    run.wait(timeout=120)
    watches = [local_cluster.run(run.name).watch() for _ in range(2)]
    assert all(map(ended, watches))
    assert [watch.training.last_step for watch in watches] == [4, 4]
    assert [watch.log_tail.total for watch in watches] == [22, 22]


def test_a_watch_that_is_stopped_leaves_no_thread_and_goes_on_where_it_was(launch, plain):
    run = launch(plain(TRAINER.format(steps=2000, pause=0.02)))
    watch = run.watch()
    until(lambda: (watch.collect(), watch.training.last_step or 0)[1] > 20, "step 20")
    watch.stop()
    assert not threads()
    assert watch.finished
    stopped = watch.log_tail.total
    assert watch.training.last_step is not None
    watch.start()
    until(lambda: watch.log_tail.total > stopped + 50, "more lines")
    watch.stop()
    frame = watch.training.frame()
    assert frame.steps.tolist() == list(range(len(frame.steps)))
    run.delete()


def test_a_run_that_is_deleted_ends_its_watch_and_its_pods_stay_to_be_seen(launch, plain):
    run = launch(plain(TRAINER.format(steps=2000, pause=0.02)))
    watch = run.watch()
    until(lambda: (watch.training.last_step or 0) > 3, "step 3")
    run.delete()
    assert ended(watch)
    assert watch.phase == "Deleted"
    assert len(watch.pods) == 2
    assert not threads()


def kill(cluster, name):
    until(lambda: component(cluster, name), f"{name} to be there")
    component(cluster, name).kill()


def cut(watch):
    """Hang up on the API server, wherever the lines are."""
    for follower in list(watch.logs.followed.values()):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it has hung up already
            connection = follower.stream._response._sock_shutdown.__self__
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                same.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", ["connection", *slow("kubelet", "kube-apiserver")])
def test_a_log_that_is_cut_comes_without_a_gap_and_without_a_double(request, train, name):
    """Lines come faster than the API's seconds, many in one piece and so with one time."""
    source = """
        import time
        for number in range(6000):
            print("line", number, flush=number % 70 == 0)
            time.sleep(0.0005)
    """
    cluster = request.getfixturevalue("local_cluster" if name == "connection" else "own_cluster")
    run = train(cluster, source=source)
    watch, log_lines = run.watch(), []
    keep = watch.log_tail.add
    watch.log_tail.add = lambda lines: (log_lines.extend(lines), keep(lines))
    for lines in range(500, 5000, 500) if name == "connection" else (500, 2500):
        until(lambda lines=lines: len(log_lines) > lines, f"line {lines}")
        cut(watch) if name == "connection" else kill(cluster, name)
    assert ended(watch), watch
    for rank in (0, 1):
        mine = [line.text for writer, line in log_lines if writer == rank]
        expected = [f"line {number}" for number in range(6000)]
        missing = [number for number in range(6000) if f"line {number}" not in set(mine)]
        assert (len(mine), missing[:1], missing[-1:]) == (6000, [], []), watch.error
        assert mine == expected
