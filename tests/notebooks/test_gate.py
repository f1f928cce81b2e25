"""The gate closes: notebooks that must fail do, the cell is named, the local cluster is deleted all the same.

The same on somebody else's cluster is ``test_smoke.py``'s.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output

import kitlib as kit

from ..rows import slow

ROOT = Path(__file__).parents[2]
CLUSTER = "gate"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


HAS_GPUS = """import kitlib as kit
cluster = kit.create_cluster(provider, name=cluster_name, nodes=nodes, **options)
assert [each["gpus"] for each in cluster.nodes()] == ["1"]"""
WAITS = ("import kitlib as kit\nkit.connect(cluster_name)", "import threading\nthreading.Event().wait()")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGALRM, 124)])
def test_a_run_that_has_to_stop_ends_every_lane_and_deletes_its_cluster(
    number, status, make_notebook, runner, tmp_path
):
    make_notebook("07_waits", *WAITS)
    make_notebook("08_waits", *WAITS)
    command = runner("--cluster", CLUSTER, "--nodes", "1", "--lanes", "2", "--folder", str(tmp_path))
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE) as process:
        lines, kernels = [], set()
        for line in process.stdout:
            lines.append(line)
            if "cell 5/5" in line:
                kernels.add(line.split()[0])
                if kernels == {"07", "08"}:  # the time limit sends a signal, too
                    process.send_signal(number)
    assert process.returncode == status, "".join(lines)
    assert not {CLUSTER, f"{CLUSTER}-2"} & {cluster["cluster"] for cluster in kit.list_clusters()}
    result = json.loads((tmp_path / "reports" / "result.json").read_text())
    assert "passed" not in [notebook["verdict"] for notebook in result["notebooks"]]
    assert (result["bundle"] is not None) == (number == signal.SIGALRM)


@pytest.mark.slow
def test_notebooks_run_side_by_side_and_one_that_fails_leaves_the_other_lane_alone(
    make_notebook, runner, finish, tmp_path
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        meet = f"import socket\nsocket.create_connection({server.getsockname()}).recv(1)"
        make_notebook("07_meets", meet, HAS_GPUS)
        make_notebook("08_fails", meet, "assert cluster_name == 'nobody'")
        words = ("--cluster", CLUSTER, "--nodes", "1", "--lanes", "2", "--option", "gpus=1")
        command = runner(*words, "--folder", str(tmp_path))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(finish, command, timeout=400)
            both = [server.accept()[0] for _ in range(2)]  # neither goes on before the other one is there
            for span in both:
                span.close()
            done = running.result()
    assert done.returncode == 1, done.stdout
    assert re.search(r"^07  \d:\d\d  cell 4/5", done.stdout, re.MULTILINE), done.stdout
    result = json.loads((tmp_path / "reports" / "result.json").read_text())
    assert [notebook["verdict"] for notebook in result["notebooks"]] == ["passed", "failed"]
    lanes = {span["name"]: span["lane"] for span in result["timeline"] if span["kind"] == "notebook"}
    assert sorted(lanes.values()) == [1, 2]
    with tarfile.open(tmp_path / "reports" / result["bundle"]) as archive:
        assert {name.split("/")[1] for name in archive.getnames() if "/" in name} == {"08_fails"}
    assert not {CLUSTER, f"{CLUSTER}-2"} & {cluster["cluster"] for cluster in kit.list_clusters()}


def test_a_name_that_no_notebook_has_starts_nothing(runner, finish):
    done = finish(runner("99_nothing"), timeout=120)
    assert done.returncode == 1
    assert "there is no notebook 99_nothing; available: 00_start" in done.stdout


@pytest.mark.parametrize(
    "words",
    [("--time-limit", "soon"), *slow((("--min-accuracy", "good"),), (("--tolerations", "a:Sometimes"),))],
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
    assert done.returncode == 1 and "mismatch" in done.stdout, done.stdout
