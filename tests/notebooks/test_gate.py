"""The gate closes: notebooks that must fail do, the cell is named, the local cluster is deleted all the same.

The same on somebody else's cluster is ``test_smoke.py``'s.
"""

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

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_an_interrupted_run_deletes_its_cluster(make_notebook, runner, tmp_path):
    make_notebook("07_waits", "import threading\nthreading.Event().wait()")
    command = runner("--cluster", CLUSTER, "--nodes", "1", "--folder", str(tmp_path))
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE) as process:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "cell 4/4" in line:
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130, "".join(seen)
    assert CLUSTER not in [each["cluster"] for each in kit.list_clusters()]


def test_a_name_that_no_notebook_has_starts_nothing(runner, finish):
    done = finish(runner("99_nothing"), timeout=120)
    assert done.returncode == 1
    assert "no notebook is called 99_nothing; there are 00_start" in done.stdout


@pytest.mark.parametrize(
    "words", [("--time-limit", "soon"), ("--min-accuracy", "good"), ("--tolerations", "a:Sometimes")]
)
def test_a_setting_that_cannot_be_used_starts_nothing_and_is_named(words, runner, finish):
    done = finish(runner(*words), timeout=120)
    assert done.returncode == 2
    assert words[1] in done.stdout


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
