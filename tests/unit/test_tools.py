"""The setup's progress and its failures, and what a report reads from executed notebooks."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kitlib.causes import Cause

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))  # as it is for a program that lies there
from smoke.good_runs import GoodRuns  # noqa: E402
from smoke.result import Outcome  # noqa: E402


def tool(name):
    """Return a module of ``tools/``; importing it does nothing."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


setup, report, execute_notebook = tool("setup"), tool("report"), tool("execute_notebook")


def job(name, program, **options):
    return setup.Job(name, "a second elsewhere", [[sys.executable, "-c", program]], "try again", **options)


def test_a_failure_carries_the_last_words_and_the_remedy_and_ends_the_other_job():
    endless = job("endless", "import threading; threading.Event().wait()")
    failing = job("failing", "print('no space left'); raise SystemExit(3)")
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(setup.obtain([endless, failing]))
    (error,) = caught.value.exceptions
    assert "no space left" in str(error)
    assert "ended with 3" in str(error)
    assert "try again" in str(error)


def test_an_environment_counts_as_ready_only_for_the_same_requirements(tmp_path, monkeypatch):
    assert not setup.is_ready(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    setup.mark(tmp_path)
    assert setup.is_ready(tmp_path)
    monkeypatch.setattr(setup, "fingerprint", lambda: "of other requirements")
    assert not setup.is_ready(tmp_path)


def test_a_virtual_environment_whose_making_was_interrupted_is_made_anew(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("pyvenv.cfg", "bin/python"):
        (tmp_path / name).touch()
    assert "--clear" in setup.packages_job(tmp_path).commands[0]
    (tmp_path / "bin/pip").touch()
    assert "--clear" not in setup.packages_job(tmp_path).commands[0]


@pytest.fixture
def executed(tmp_path):
    """Return a function that writes a notebook and its execution, and reads the latter."""

    def read(*cells, status="completed", count=1):
        cells = [new_markdown_cell("# A title\n\nA goal."), *cells]
        original = tmp_path / "07_made.ipynb"
        nbformat.write(new_notebook(cells=cells), original)
        for cell in cells[1:]:
            cell.metadata["papermill"] = {"status": status}
            cell.execution_count = count
        injected = new_code_cell("# Parameters\nx = 1", metadata={"tags": ["injected-parameters"]})
        notebook = new_notebook(cells=[cells[0], injected, *cells[1:]])
        notebook.metadata["papermill"] = {"duration": 12.5}
        nbformat.write(notebook, tmp_path / "out.ipynb")
        return report.read(tmp_path / "out.ipynb", original=original)

    return read


def test_a_result_has_title_goal_duration_and_accuracy(executed):
    cell = new_code_cell("accuracy", metadata={"tags": ["result-accuracy"]})
    cell.outputs = [new_output("execute_result", data={"text/plain": "0.9861"}, execution_count=1)]
    result = executed(cell)
    assert (result.title, result.goal, result.seconds) == ("A title", "A goal.", 12.5)
    assert result.accuracy == 0.9861
    assert result.verdict == "passed"


def test_figures_are_the_values_of_tagged_cells_and_what_is_no_number_is_none(executed):
    values = {
        "{'accuracy': 0.5, 'images_per_s': 812.5, 'synthetic': True}": [
            "result-accuracy",
            "result-images-per-s",
        ],
        "246.0": ["result-allreduce"],
        "<Run digits>": ["result-accuracy"],
    }
    cells = [new_code_cell("value", metadata={"tags": tags}) for tags in values.values()]
    for cell, text in zip(cells, values, strict=True):
        cell.outputs = [new_output("execute_result", data={"text/plain": text}, execution_count=1)]
    expected = {"accuracy": 0.5, "images_per_s": 812.5, "allreduce_mb_per_s": 246.0}
    result = executed(*cells)
    assert (result.figures, result.synthetic) == (expected, True)


def test_a_result_names_each_data_set_and_whether_it_was_real(executed):
    prepared, again = new_code_cell("a = prepare()"), new_code_cell("kit.launch('trainers/digits_ddp.py')")
    text = "dataset cifar10: SYNTHETIC images, not the real ones (0.4 s)"
    prepared.outputs = [new_output("display_data", data={"text/plain": text})]
    again.outputs = [new_output("stream", text="ready\ndataset mnist: real images, from a mirror (0.1 s)\n")]
    datasets = executed(prepared, again).data
    assert datasets == {"cifar10": "synthetic", "mnist": "real", "digits": "real"}


def test_a_failed_cell_has_the_number_of_the_stored_notebook(executed):
    cell = new_code_cell("first = 1\nboom()")
    cell.outputs = [new_output("error", ename="NameError", evalue="boom", traceback=[])]
    result = executed(new_code_cell("fine"), cell)
    assert result.verdict == "failed"
    assert str(result.failure) == "cell 3 (`first = 1`): NameError: boom"


def test_a_notebook_whose_kernel_never_answered_has_not_passed(executed):
    assert executed(new_code_cell("fine"), count=None).verdict == "not finished"


def test_the_sockets_of_a_kernel_are_not_beside_the_notebook(tmp_path):
    (tmp_path / "notebooks").mkdir()
    path, out = tmp_path / "notebooks" / "07_made.ipynb", tmp_path / "out.ipynb"
    cells = [new_markdown_cell("# A title"), new_code_cell("import os\nos.listdir()")]
    nbformat.write(new_notebook(cells=cells), path)
    command = [sys.executable, str(ROOT / "tools" / "execute_notebook.py"), str(path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (output,) = nbformat.read(out, as_version=4).cells[1].outputs
    assert output.data["text/plain"] == "['07_made.ipynb']"
    assert report.read(out, original=path).verdict == "passed"


def test_pictures_carry_their_description_and_the_page_loads_nothing(executed, tmp_path):
    cell = new_code_cell(
        "plot()", metadata={"tags": ["result-picture"], "trainyard": {"alt": "Loss & <more>"}}
    )
    cell.outputs = [new_output("display_data", data={"image/png": "aGFsbG8=\n", "text/plain": ""})]
    result = executed(cell)
    assert result.pictures == (report.Picture("aGFsbG8=", "Loss & <more>"),)
    (tmp_path / "07_made.ipynb").rename(tmp_path / "original.ipynb")
    (tmp_path / "out.ipynb").rename(tmp_path / "07_made.ipynb")
    outcome = Outcome("run-1", "2030-01-02T03:04:05+00:00", ["07_made", "08_later"], notebooks=[result])
    page = report.write(outcome, folder=tmp_path).read_text()
    assert "1 of 2 notebooks passed" in page
    assert 'alt="Loss &amp; &lt;more&gt;"' in page
    assert 'alt="Loss &amp; &lt;more&gt;"' in (tmp_path / "07_made.html").read_text()
    assert "<title>07_made</title>" in (tmp_path / "07_made.html").read_text()
    for path in (tmp_path / "index.html", tmp_path / "07_made.html"):
        assert 'src="http' not in path.read_text()


def test_a_notebook_that_cannot_be_written_leaves_the_last_one_whole(tmp_path):
    path = tmp_path / "05_indexed_job.ipynb"
    path.write_text("whole")
    path.with_name(f"{path.name}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        execute_notebook.WholeFiles().write("torn" * 9999, str(path))
    assert path.read_text() == "whole"


def test_the_page_of_the_public_api_is_what_docstrings_say():
    assert (ROOT / "docs" / "api.md").read_text() == tool("api_docs").page(), "run tools/api_docs.py"


def succeeded(*runs, causes=()):
    """Return what finds a cluster whose runs have succeeded, of which why names causes."""
    rows, why = [{"run": name, "status": "Succeeded"} for name in runs], SimpleNamespace(causes=causes)
    cluster = SimpleNamespace(
        provider="local", runs=lambda: rows, run=lambda run: SimpleNamespace(why=lambda: why)
    )
    return lambda name: cluster


def test_a_notebook_fails_whose_run_has_succeeded_and_has_a_cause_all_the_same(executed, tmp_path):
    cause = Cause(kind="Straggler", who="rank 1", what="sleeps", fix="")
    good_runs = GoodRuns("lab", find=succeeded("well", causes=[cause]))
    path, out = tmp_path / "notebook.ipynb", tmp_path / "executed.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1"), new_code_cell("# run.delete()")]), path)
    assert execute_notebook.execute(path, out, {}, good_runs=good_runs) == 1
    good_runs.check()  # a run is asked once
    failure = report.read(out, original=path).failure
    assert (
        str(failure) == "cell 2 (`run.why()`): run well has succeeded, and why names Straggler: rank 1 sleeps"
    )


def test_good_runs_without_a_cause_and_clusters_that_are_not_there_are_silent():
    for good_runs, checked in (
        (GoodRuns("x", find=succeeded("well")), {"well"}),
        (GoodRuns("nowhere"), set()),
    ):
        good_runs.check()
        assert (good_runs.checked, good_runs.false_causes) == (checked, [])
