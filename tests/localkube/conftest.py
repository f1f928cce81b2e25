"""What tests of the local cluster's modules share: no clusters of other tests."""

import shutil
import tempfile

import pytest


@pytest.fixture(scope="session")
def empty_state():
    """A folder without clusters. Its path is short, as a Unix socket's has to be."""
    folder = tempfile.mkdtemp(prefix="ty-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_clusters_of_other_tests(request, monkeypatch, empty_state):
    """Hide the clusters that other folders' tests keep in this process: several make ``-c`` a must."""
    if not {"state_home", "local_cluster"} & set(request.fixturenames):
        monkeypatch.setenv("XDG_STATE_HOME", empty_state)
