"""Every notebook, as it is stored, by nbval and then by papermill: twice in a row, on one cluster.

The order of the tests matters to that, and to nothing else: each of them makes what it does not find.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import kitlib as kit
from localkube.paths import cache_dir

from ..node import rooms

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LAST = "11_clean_up"  # deletes the cluster
CLUSTER = "trainyard"  # the name in the notebooks; the state folder is the tests' own
LIMIT = 1500

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LIMIT)]


@pytest.fixture(scope="module")
def cluster_of_the_notebooks(state_home):
    """Delete what the notebooks leave, also where one stopped half-way."""
    yield CLUSTER
    kit.clusters.LocalCluster(CLUSTER).delete()


@pytest.fixture
def nbval(finish):
    """Return a function that runs notebooks by nbval: cells must pass, checked outputs must be as stored."""
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600", "-p", "no:cacheprovider", "-q"]
    options += ["--durations=10", f"--nbval-sanitize-with={ROOT / 'notebooks' / 'sanitize.cfg'}"]

    def run(*names):
        paths = [str(ROOT / "notebooks" / f"{name}.ipynb") for name in names]
        return finish([sys.executable, "-m", "pytest", *options, *paths], timeout=LIMIT)

    return run


def check_nbval(done):
    """Fail with the cells that did, and below them all that was said."""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert done.returncode == 0, "\n".join([*failed, "", done.stdout])


def check_papermill(done, reports):
    """Fail with the last lines, which name the cells; return what the run says of itself."""
    assert done.returncode == 0, done.stdout
    result = json.loads((reports / "result.json").read_text())
    assert result["verdict"] == "passed"
    assert [each["name"] for each in result["notebooks"]] == NOTEBOOKS
    return {each["name"]: each for each in result["notebooks"]}


def test_nbval_passes_the_notebooks_that_keep_the_cluster(cluster_of_the_notebooks, nbval):
    check_nbval(nbval(*(name for name in NOTEBOOKS if name != LAST)))


def test_papermill_passes_all_on_the_same_cluster_and_reports(
    cluster_of_the_notebooks, runner, finish, tmp_path
):
    done, reports = finish(runner("--cluster", cluster_of_the_notebooks), timeout=LIMIT), tmp_path / "reports"
    told = check_papermill(done, reports)
    assert re.search(r"cell 4/\d+ +import kitlib as kit", done.stdout), "it says where it is"
    assert told["05_indexed_job"]["figures"]["accuracy"] >= 0.97
    index = (reports / "index.html").read_text()
    assert index.count('class="passed"') == len(NOTEBOOKS)
    assert index.count("<img") >= 3
    for page in reports.glob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', page.read_text()), page
    for path in reports.iterdir():
        assert "PRIVATE KEY" not in path.read_text()
        assert "client-key-data" not in path.read_text()
    for path in reports.glob("*.ipynb"):
        assert path.stat().st_size < 2**20, f"{path.name} is too large to be read on the web"
    assert CLUSTER not in [each["cluster"] for each in kit.list_clusters()]


def test_nbval_passes_cleaning_up_where_nothing_was_made_before(cluster_of_the_notebooks, nbval):
    check_nbval(nbval(LAST))


def test_papermill_passes_a_notebook_where_pods_are_plain_processes(runner, finish, monkeypatch):
    monkeypatch.setenv("TRAINYARD_MODE", "plain")
    done = finish(runner("--cluster", "plain", "01"), timeout=LIMIT)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_papermill_passes_all_where_pods_are_plain_processes(runner, finish, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINYARD_MODE", "plain")
    check_papermill(finish(runner("--cluster", "plain"), timeout=LIMIT), tmp_path / "reports")
    assert "plain" not in [each["cluster"] for each in kit.list_clusters()]


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0, reason="NOT LEFT OUT: this user is not root, so every other test is without privileges"
)
def test_papermill_passes_all_as_a_user_without_privileges(finish):
    with tempfile.TemporaryDirectory(prefix="nobody-") as path:
        home = Path(path)
        shutil.copytree(cache_dir(), home / ".cache" / "trainyard", symlinks=True)
        for each in [home, *home.rglob("*")]:
            os.chown(each, rooms.NOBODY, rooms.NOBODY, follow_symlinks=False)
        home_of_nobody = {name: str(home) for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
        home_of_nobody |= {"XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / ".cache")}
        command = [
            sys.executable,
            str(ROOT / "tools" / "run_notebooks.py"),
            "--output",
            str(home / "reports"),
        ]
        enter = rooms.nobody({place: place for place in rooms.python_places()})
        done = finish(command, timeout=LIMIT, env=os.environ | home_of_nobody, preexec_fn=enter)
        check_papermill(done, home / "reports")
