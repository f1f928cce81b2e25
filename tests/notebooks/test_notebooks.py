"""Every notebook, as it is stored, by nbval and then by papermill: twice in a row, on one cluster.

The order of the tests matters to that, and to nothing else: each of them makes what it does not find.
"""

import re
import sys
from pathlib import Path

import pytest

import kitlib as kit

ROOT = Path(__file__).parents[2]
CLUSTER = "trainyard"  # the name in the notebooks; the state folder is the tests' own
LIMIT = 900

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LIMIT)]


@pytest.fixture(scope="module")
def cluster_of_the_notebooks(state_home):
    """Delete what the notebooks leave, also where one stopped half-way."""
    yield CLUSTER
    kit.clusters.LocalCluster(CLUSTER).delete()


@pytest.fixture
def nbval(finish):
    """Return a function that runs notebooks by nbval: cells must pass, checked outputs must be as stored."""
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300", "-p", "no:cacheprovider", "-q"]
    sanitize = f"--nbval-sanitize-with={ROOT / 'notebooks' / 'sanitize.cfg'}"

    def run(*names):
        paths = [str(ROOT / "notebooks" / f"{name}.ipynb") for name in names]
        return finish([sys.executable, "-m", "pytest", *options, sanitize, *paths], timeout=LIMIT)

    return run


def test_nbval_passes_the_notebooks_that_keep_the_cluster(cluster_of_the_notebooks, nbval):
    done = nbval("00_start", "01_create_a_cluster", "05_indexed_job")
    assert done.returncode == 0, done.stdout


def test_papermill_passes_all_on_the_same_cluster_and_reports(
    cluster_of_the_notebooks, runner, finish, tmp_path
):
    done = finish(runner("--cluster", cluster_of_the_notebooks), timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    assert re.search(r"cell 4/\d+ +import kitlib as kit", done.stdout), "it says where it is"
    index = (tmp_path / "reports" / "index.html").read_text()
    assert index.count('class="passed"') == 4
    assert float(re.search(r"(\d+\.\d+) %", index)[1]) >= 97
    assert index.count("<img") == 3
    for page in (tmp_path / "reports").glob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', page.read_text()), page
        assert "PRIVATE KEY" not in page.read_text()
        assert "client-key-data" not in page.read_text()
    assert CLUSTER not in [each["cluster"] for each in kit.list_clusters()]


def test_nbval_passes_cleaning_up_where_nothing_was_made_before(cluster_of_the_notebooks, nbval):
    done = nbval("11_clean_up")
    assert done.returncode == 0, done.stdout


def test_papermill_passes_all_where_pods_are_plain_processes(runner, finish, monkeypatch):
    monkeypatch.setenv("TRAINYARD_MODE", "plain")
    done = finish(runner("--cluster", "plain"), timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    assert "plain" not in [each["cluster"] for each in kit.list_clusters()]
