"""`make test` runs a failed test once more, in the same worker, and says so; one that fails twice fails."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from pathlib import Path

def log(line):
    with Path("clusters.log").open("a") as lines:
        print(line, file=lines)

@pytest.fixture(scope="session")
def shared():
    log("create shared")
    yield
    log("delete shared")

@pytest.fixture(scope="module")
def cluster(shared):
    log("create")
    yield
    log("delete")
"""
TESTS = """
runs = []

def test_second_time_lucky(cluster):
    runs.append(1)
    assert len(runs) == 2

def test_never_lucky(cluster):
    raise RuntimeError("wrong, however often it runs")

def test_lucky_and_last_of_all(cluster):
    runs.append(1)
    assert len(runs) == 4
"""


@pytest.fixture
def command():
    """Return the command of `tools/dev.py test-quick`, for one worker, less the folder of the tests."""
    task = [sys.executable, "tools/dev.py", "test-quick", "WORKERS=1", "DRY_RUN=1", f"VENV={sys.prefix}"]
    printed = subprocess.run(task, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *command, folder = shlex.split(printed)
    assert folder == "tests"
    return command


def test_a_rerun_is_named_keeps_its_clusters_and_forgives_one_failure_alone(command, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = slow\nasyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    reruns = done.stdout.partition("rerun test summary info")[2].splitlines()
    assert [line for line in reruns if line.startswith(("RERUN", "PASSED"))] == [
        "RERUN test_it.py::test_second_time_lucky",
        "PASSED test_it.py::test_second_time_lucky",
        "RERUN test_it.py::test_never_lucky",
        "RERUN test_it.py::test_lucky_and_last_of_all",
        "PASSED test_it.py::test_lucky_and_last_of_all",
    ]
    assert "FAILED test_it.py::test_never_lucky" in reruns
    clusters = (tmp_path / "clusters.log").read_text().splitlines()
    assert clusters == ["create shared", "create", "delete", "delete shared"]
