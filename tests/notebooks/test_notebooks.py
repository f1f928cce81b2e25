"""Every notebook, as it is stored, by nbval; then some of them by papermill, and all among the slow tests.

All on one cluster: a notebook runs twice in a row. The order of the tests matters to that, and to nothing
else: each of them makes what it does not find. For nbval each notebook is a test of its own, so that one that
failed is seen by its name. ``make run`` executes them by papermill, too.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest

import kitlib as kit
from kitlib.errors import KitError
from localkube.paths import cache_dir

from ..node import restrictions

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))  # as it is for a program that lies there
from smoke.brief import brief  # noqa: E402
from solutions import unfold  # noqa: E402

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LAST = "13_clean_up"  # deletes the cluster
QUICK = "00"  # `make run` executes the others, too
CLUSTER = "trainyard"  # the name in the notebooks; the state folder is the tests' own
MIN_ACCURACY = {"05_indexed_job": 0.97}
SOME = [LAST]
ONE, LIMIT = 1200, 3000  # seconds, for one notebook and for all of them on a busy machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LIMIT + 300)]


@pytest.fixture(scope="module")
def cluster_of_the_notebooks(state_home):
    """Delete what the notebooks leave, also where one stopped half-way."""
    yield CLUSTER
    kit.clusters.LocalCluster(CLUSTER).delete()


@pytest.fixture
def nbval(finish, tmp_path):
    """Return a function that runs a notebook by nbval: cells must pass, checked outputs must be as stored.

    It is a copy whose solutions are code, in a folder that has what is beside the notebooks.
    """
    options = [
        "--nbval-lax",
        "--nbval-current-env",
        "--nbval-cell-timeout=600",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    options += ["--durations=5", f"--nbval-sanitize-with={ROOT / 'notebooks' / 'sanitize.cfg'}"]
    options += ["--nbval-kernel-startup-timeout=300", "-p", "tests.notebooks.patience"]
    options += ["--exitfirst"]  # the cells after it would wait for what will not come

    def run(name):
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir()
        names = ("docs", "images", "manifests", "programs", "trainers", "trainyard_kit")
        beside = [ROOT / name for name in names]
        for place in (*beside, *(ROOT / "notebooks").glob("s*")):
            (tmp_path / place.relative_to(ROOT)).symlink_to(place)
        nbformat.write(unfold(nbformat.read(ROOT / "notebooks" / path.name, as_version=4)), path)
        return finish([sys.executable, "-m", "pytest", *options, path], timeout=ONE)

    return run


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SOME, id="some"),
        pytest.param(NOTEBOOKS, id="all", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def papermill(request, cluster_of_the_notebooks, finish, tmp_path_factory):
    """Run notebooks by papermill on that cluster; return their names, how it ended, and the report."""
    reports, names = tmp_path_factory.mktemp("papermill"), request.param
    done = finish(program(reports, "--cluster", cluster_of_the_notebooks, *names), timeout=LIMIT)
    return names, done, reports


def program(reports, *words):
    """Return the command line of ``tools/run_notebooks.py`` with its report in a folder."""
    command = [sys.executable, str(ROOT / "tools" / "run_notebooks.py"), "--output", str(reports)]
    return [*command, "--lanes", "1", *words]  # on the cluster that nbval has used, in the course's order


def check_nbval(done):
    """Fail with the error of the cell that did, and below it all that was said, and how the cluster is."""
    if done.returncode:
        output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        traceback = output.partition("\nTraceback:\n")[2].partition("\n=====")[0].strip()
        try:
            now = brief(kit.connect(CLUSTER))
        except KitError as error:
            now = str(error)
        pytest.fail("\n".join([traceback.rpartition("\n\n")[2], *failed, output, now]), pytrace=False)


def results_by_notebook(reports):
    """Return what a run says of each notebook."""
    result = json.loads((reports / "result.json").read_text())
    return {notebook["name"]: notebook for notebook in result["notebooks"]}


def check_papermill(done, reports, *, names):
    """Fail with the last lines, which name the cells; return what the run says of itself."""
    assert done.returncode == 0, done.stdout
    assert json.loads((reports / "result.json").read_text())["verdict"] == "passed"
    assert list(results_by_notebook(reports)) == names
    return results_by_notebook(reports)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(QUICK) else [pytest.mark.slow])
        for name in NOTEBOOKS
        if name != LAST
    ],
)
def test_nbval_passes_a_notebook_that_keeps_the_cluster(name, cluster_of_the_notebooks, nbval):
    check_nbval(nbval(name))


def test_papermill_passes_notebooks_on_the_same_cluster(papermill):
    names, done, reports = papermill
    for name, result in check_papermill(done, reports, names=names).items():
        assert result["figures"].get("accuracy", 1) >= MIN_ACCURACY.get(name, 0), name


def test_papermill_reports_what_became_of_them(papermill):
    names, done, reports = papermill
    assert re.search(r"cell \d+/\d+ +import kitlib as kit", done.stdout), "it says where it is"
    index = (reports / "index.html").read_text()
    assert index.count('<span class="passed">passed</span>') == len(names)
    assert index.count("<img") >= (3 if names == NOTEBOOKS else 1)
    for page in reports.glob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', page.read_text()), page
    for path in reports.iterdir():
        if path.suffix != ".gz":
            assert "PRIVATE KEY" not in path.read_text()
            assert "client-key-data" not in path.read_text()
    for path in reports.glob("*.ipynb"):
        assert path.stat().st_size < 2**20, f"{path.name} is too large to be read on the web"
    assert CLUSTER not in [cluster["cluster"] for cluster in kit.list_clusters()]


@pytest.mark.slow
def test_nbval_passes_cleaning_up_where_nothing_was_made_before(cluster_of_the_notebooks, nbval):
    check_nbval(nbval(LAST))


@pytest.mark.slow
def test_papermill_passes_a_notebook_where_pods_are_plain_processes(runner, finish, monkeypatch):
    monkeypatch.setenv("TRAINYARD_MODE", "plain")
    done = finish(runner("--cluster", "plain", "01"), timeout=ONE)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_papermill_passes_all_where_pods_are_plain_processes(runner, finish, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINYARD_MODE", "plain")
    done = finish(runner("--cluster", "plain"), timeout=LIMIT)
    check_papermill(done, tmp_path / "reports", names=NOTEBOOKS)
    assert "plain" not in [cluster["cluster"] for cluster in kit.list_clusters()]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(
    os.getuid() != 0, reason="NOT LEFT OUT: this user is not root, so every other test is without privileges"
)
def test_papermill_passes_all_as_a_user_without_privileges(finish):
    with tempfile.TemporaryDirectory(prefix="nobody-") as path:
        home = Path(path)
        shutil.copytree(cache_dir(), home / ".cache" / "trainyard", symlinks=True)
        for path in [home, *home.rglob("*")]:
            os.chown(path, restrictions.NOBODY, restrictions.NOBODY, follow_symlinks=False)
        home_of_nobody = {name: str(home) for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
        home_of_nobody |= {"XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / ".cache")}
        command = [
            sys.executable,
            str(ROOT / "tools" / "run_notebooks.py"),
            "--output",
            str(home / "reports"),
        ]
        enter = restrictions.become_nobody({place: place for place in restrictions.python_places()})
        done = finish(command, timeout=LIMIT, env=os.environ | home_of_nobody, preexec_fn=enter)
        check_papermill(done, home / "reports", names=NOTEBOOKS)
