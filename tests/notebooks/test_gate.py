"""The gate closes: notebooks that must fail do, the cell is named, the cluster is deleted all the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output

import kitlib as kit

ROOT = Path(__file__).parents[2]
CLUSTER = "gate"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def clusters():
    return [each["cluster"] for each in kit.list_clusters()]


def test_a_notebook_that_fails_is_named_with_its_cell_and_the_others_still_run(
    make_notebook, runner, finish, tmp_path
):
    make_notebook(
        "07_fails", "import kitlib as kit", "first = 1\nassert first == 2, 'one is not two'", "never = 1"
    )
    make_notebook("08_passes", "import kitlib as kit\nlen(kit.connect(cluster_name).nodes())")
    done = finish(runner("--cluster", CLUSTER, "--folder", str(tmp_path)), timeout=240)
    assert done.returncode == 1, done.stdout
    assert "07_fails: failed: cell 4 (`first = 1`): AssertionError: one is not two" in done.stdout
    assert "08_passes: passed" in done.stdout
    index = (tmp_path / "reports" / "index.html").read_text()
    assert 'class="failed"' in index
    assert "one is not two" in index
    assert CLUSTER not in clusters()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_an_interrupted_run_deletes_its_cluster(number, make_notebook, runner, tmp_path):
    make_notebook("07_waits", "import threading\nthreading.Event().wait()")
    command = runner("--cluster", CLUSTER, "--folder", str(tmp_path))
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE) as process:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "cell 4/4" in line:
                process.send_signal(number)
    assert process.returncode == 130, "".join(seen)
    assert CLUSTER not in clusters()


def test_a_name_that_no_notebook_has_starts_nothing(runner, finish):
    done = finish(runner("99_nothing"), timeout=60)
    assert done.returncode == 1
    assert "no notebook is called 99_nothing; there are 00_start" in done.stdout


def test_nbval_fails_on_an_output_that_has_changed(make_notebook, finish):
    path = make_notebook("07_changed", "1 + 1")
    notebook = nbformat.read(path, as_version=4)
    cell = notebook.cells[-1]
    cell.metadata["tags"], cell.execution_count = ["nbval-check-output"], 2
    cell.outputs = [new_output("execute_result", data={"text/plain": "3"}, execution_count=2)]
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q", str(path)]
    done = finish(command, timeout=120)
    assert done.returncode == 1, done.stdout
    cell.outputs[0].data["text/plain"] = "2"
    nbformat.write(notebook, path)
    assert finish(command, timeout=120).returncode == 0
