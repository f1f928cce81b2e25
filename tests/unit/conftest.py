"""What the tests of the trainers share: a trainer run in the test's own process, which is quick."""

import json
import shutil
import tempfile

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Let torch compute in one thread: for so little, several only get in each other's way."""
    torch.set_num_threads(1)


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


@pytest.fixture
def run_trainer(capsys, monkeypatch):
    """Run a trainer in this process, alone; return its events."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def run(module, *flags):
        capsys.readouterr()
        try:
            module.main([str(flag) for flag in flags])
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    return run
