"""The status of each attendee: what a notebook reports, and the instructor's table of it."""

import json
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from kitlib.errors import ClusterUnreachable, KitError, Rejected
from kitlib.k8s import pods as pod_table
from kitlib.widgets.widget import LiveView
from trainyard_kit.workshop import attendee_status, progress_reporter
from trainyard_kit.workshop.progress_reporter import NotebookPosition, ProgressReporter, locate
from trainyard_kit.workshop.widget import WorkshopWatch, shares

from . import objects

EVIL = "\x1b[2J\u202e<script>alert(1)</script>\n"
COURSE = {
    "import kitlib as kit": [("05_indexed_job", 2, 4), ("06_data_parallel", 2, 5)],
    "run.plot()": [("05_indexed_job", 4, 4)],
}
LABEL = "trainyard/attendee"
NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class Recorder:
    """Takes what a reporter writes, or fails as it is told to."""

    namespace = "attendee-ada"

    def __init__(self, error=None):
        self.error, self.written, self.asked = error, {}, 0
        self.wrote = threading.Event()

    def patch(self, kind, name, change):
        self.asked += 1
        self.wrote.set()
        if self.error is not None:
            raise self.error
        self.written |= change["data"]


def cell(source, error=None):
    info = SimpleNamespace(raw_cell=source)
    return SimpleNamespace(info=info, raw_cell=source, error_in_exec=error, error_before_exec=None)


def test_a_cell_of_several_notebooks_belongs_to_the_last_one():
    assert locate("run.plot()\n", NotebookPosition("another"), COURSE).cell == 4
    assert locate("import kitlib as kit", NotebookPosition("06_data_parallel"), COURSE).of == 5
    unknown = locate("import kitlib as kit", NotebookPosition("another"), COURSE)
    assert (unknown.notebook, unknown.cell) == ("another", 0)
    stays = NotebookPosition("05_indexed_job", 3, 4)
    assert locate("my_own = 1", stays, COURSE) == stays


def test_every_cell_of_the_course_is_known():
    cells = progress_reporter.cells()
    assert len(cells) > 100
    assert ("04_prepare_a_dataset", 3) in [place[:2] for place in cells["import kitlib as kit"]]


def test_a_teller_writes_the_last_word_and_an_errors_first_line():
    kube = Recorder()
    reporter = ProgressReporter(kube, course=lambda: COURSE)
    reporter.cell_started(cell("run.plot()"))
    assert kube.wrote.wait(30)
    reporter.cell_finished(cell("run.plot()", error=KitError("no such run\nmore", about="run", fix="none")))
    reporter.close()
    (record,) = [json.loads(text) for text in kube.written.values()]
    assert list(kube.written) == ["05_indexed_job"]
    assert (record["cell"], record["of"], record["state"]) == (4, 4, "failed")
    assert record["error"] == "KitError: no such run"


@pytest.mark.parametrize("status", [403, 404])
def test_where_nobody_wants_to_know_a_teller_asks_once(status):
    kube = Recorder(Rejected("no", about="notebook-progress", fix="none", status=status))
    reporter = ProgressReporter(kube, course=lambda: COURSE)
    reporter.cell_started(cell("run.plot()"))
    assert kube.wrote.wait(30)
    reporter.close()
    reporter.cell_finished(cell("run.plot()"))
    assert reporter.ended
    assert kube.asked == 1


@pytest.mark.parametrize(
    "error", [ClusterUnreachable("gone", about="cluster", fix="wait"), ZeroDivisionError("a bug of ours")]
)
def test_errors_while_reporting_do_not_reach_the_notebook(error):
    kube = Recorder(error)
    reporter = ProgressReporter(kube, course=lambda: COURSE)
    reporter.cell_started(cell("run.plot()"))
    assert kube.wrote.wait(30)
    reporter.cell_finished(cell("run.plot()"))
    reporter.close()
    reporter.cell_finished(SimpleNamespace(info=None, error_in_exec=None, error_before_exec=None))


def room(name, **data):
    namespace = {"metadata": {"name": f"attendee-{name}", "labels": {LABEL: name}}}
    return namespace, {"metadata": {"namespace": f"attendee-{name}"}, "data": data}


def pod(name, namespace, *, phase, why="", run=None):
    labels = {} if run is None else {"trainyard/run": run, "batch.kubernetes.io/job-completion-index": "1"}
    waits = [objects.condition("PodScheduled", "False", message=why)] if phase == "Pending" and why else []
    meta = {"namespace": namespace, "labels": labels, "status": {"message": why}}
    return objects.pod(name, phase=phase, conditions=waits, **meta)


def report_of(cell, of, state="done", error="", at="2030-01-01T11:59:00+00:00"):
    return json.dumps({"cell": cell, "of": of, "state": state, "error": error, "at": at})


def test_the_table_says_where_everybody_is_and_whose_pods_fail_and_why():
    bob = {
        "00_start": report_of(9, 9),
        "05_indexed_job": report_of(3, 4, "failed", "Oh: no", "2030-01-01T11:59:30Z"),
    }
    namespaces, places = zip(room("bob", **bob), room("ada"), strict=True)
    pods = [
        pod("digits-1-x", "attendee-bob", phase="Failed", why="OOMKilled", run="digits"),
        pod("waits", "attendee-bob", phase="Pending", why="0/4 nodes are available"),
        pod("well", "attendee-bob", phase="Running"),
        pod("others", "default", phase="Failed"),
    ]
    statuses = attendee_status.statuses(namespaces, places, pods)
    ada, bob = list(attendee_status.table(statuses, NOW))
    assert (ada["attendee"], ada["doing"]) == ("ada", "not reported")
    assert (bob["notebook"], bob["cell"], bob["doing"]) == ("05_indexed_job", "3 of 4", "failed for 30s")
    assert (bob["finished"], bob["pods"]) == ("00", "1 running, 1 pending, 1 failed")
    assert bob["trouble"] == "Oh: no; digits rank 1: OOMKilled; and 1 more"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "NaN",
        '{"at": "soon"}',
        report_of(1, 2, "dances"),
        report_of(1, 2, error={"html": "<b>"}),
        report_of(True, 2),
        report_of(1, 10**300),
        report_of(1, 2, at="2030-01-01T11:59:00"),  # of no time zone
        report_of(1, 2, at="2" * 5000),
        report_of(1, 2, error="x" * 100_000),
        "[" * 100_000,
        "9" * 5000,
    ],
    ids=lambda text: text[:40],
)
def test_unreadable_progress_is_left_out(text):
    assert attendee_status.read({"05_indexed_job": text, "06_data_parallel": report_of(1, 5)})[0].cell == 1
    assert len(attendee_status.read({"05_indexed_job": text})) == 0
    namespaces, places = zip(room("ada", **{"05_indexed_job": text}), room("bob"), strict=True)
    ada, bob = attendee_status.statuses(namespaces, places, [])
    assert ada.troubles == ["ConfigMap notebook-progress: not all is readable"]
    assert bob.troubles == []


@pytest.mark.parametrize("number", ["first", "9" * 5000, "-1", "1e3", "\u0663", ""])
@pytest.mark.parametrize("place", ["label", "annotation", "environment"])
def test_a_pod_whose_number_is_none_spoils_no_table(number, place):
    broken = pod("odd", "attendee-ada", phase="Failed", why="gone", run="digits")
    index = broken["metadata"]["labels"].pop("batch.kubernetes.io/job-completion-index") and number
    if place == "label":
        broken["metadata"]["labels"]["trainyard/worker"] = index
    elif place == "annotation":
        broken["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": index}
    else:
        broken["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "0"
        broken["spec"]["containers"] = [{"env": [{"name": "RANK", "value": index}]}]
    namespaces, places = zip(room("ada"), room("bob"), strict=True)
    ada, bob = attendee_status.statuses(namespaces, places, [broken])
    assert ada.troubles == ["odd: gone"]
    assert bob.troubles == []
    assert "odd" in repr(pod_table.table([broken]))


def test_pods_of_one_that_cannot_be_read_leave_the_others_rows_as_they_are():
    broken = pod("odd", "attendee-ada", phase="Failed")
    broken["status"]["containerStatuses"] = "none"
    namespaces, places = zip(room("ada"), room("bob", **{"00_start": report_of(9, 9)}), strict=True)
    statuses = attendee_status.statuses(namespaces, places, [broken])
    ada, bob = attendee_status.table(statuses, NOW)
    assert ada["trouble"].startswith("pods unreadable: ")
    assert bob["notebook"] == "00_start"


def test_an_attendees_report_takes_a_single_row():
    """Names, errors and messages are theirs: no control characters, HTML, turned text or flood."""
    flood = {f"{number:02}_own": report_of(1, 2) for number in range(3000)}
    evil = {"05_indexed_job": report_of(3, 4, "failed", EVIL + "x" * 100, "2030-01-01T11:59:30Z")}
    broken = pod("odd", "attendee-ada", phase="Pending", why="\x1b]0;title\x07<img src=x>" + "y" * 10_000)
    namespaces, places = zip(room("ada", **flood, **evil), strict=True)
    statuses = attendee_status.statuses(namespaces, places, [broken])
    shown = attendee_status.table(statuses, NOW)
    assert len(repr(shown)) < 2000
    assert not set(repr(shown)) & set("\x1b\x07\u202e")
    assert "<script>" not in shown._repr_html_()
    assert "<img" not in shown._repr_html_()
    assert shares(statuses)[0] == ["05_indexed_job"]


def test_the_live_table_has_a_row_for_each_and_how_far_they_are():
    kube = SimpleNamespace(cluster="lab", in_namespace=lambda namespace: kube)
    watch = WorkshopWatch(kube, minutes=1)
    ada = {"00_start": report_of(9, 9), "05_indexed_job": report_of(2, 4)}
    bob = {"05_indexed_job": report_of(3, 4, "failed", "Oh: no")}
    namespaces, places = zip(room("ada", **ada), room("bob", **bob), room("eve"), strict=True)
    watch.statuses = attendee_status.statuses(namespaces, places, [])
    view = LiveView(kind="workshop")
    assert watch.push(view) > 0
    assert [row[0] for row in view.tables["attendees"]["rows"]] == ["ada", "bob", "eve"]
    assert view.facts["columns"] == ["00", "05"]
    assert view.facts["progress"] == [["ada", 1.0, 0.5], ["bob", 0.0, -0.75], ["eve", 0.0, 0.0]]
    figures = "attendees: 3, active: 2, running a cell: 0, with problems: 1"
    assert repr(watch) == f"Workshop on cluster lab: {figures}"
    assert "workshopView" in LiveView._esm
