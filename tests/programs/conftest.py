"""Fixtures of the tests that run programs: a trainer runs in the process of its test, which is quick."""

import pytest
import torch

from ..localkube.conftest import empty_state, no_clusters_of_other_tests
from .small_archive import DATASETS
from .small_data import read_events

__all__ = ["empty_state", "no_clusters_of_other_tests"]  # fixtures of this folder too


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Let torch compute in one thread: for so little, several only get in each other's way."""
    torch.set_num_threads(1)


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
        run.lines = capsys.readouterr().out.splitlines()
        return read_events(run.lines)

    return run


@pytest.fixture
def prepare(tmp_path, capsys, monkeypatch):
    """Run the program that prepares datasets in this process; return its events, and its error."""
    monkeypatch.syspath_prepend(str(DATASETS))
    import prepare_dataset

    def run(name, *flags, root=tmp_path):
        error = ""
        capsys.readouterr()
        try:
            prepare_dataset.main([name, f"--root={root}", *flags])
        except SystemExit as ended:
            error = str(ended)
        return read_events(capsys.readouterr().out.splitlines()), error

    return run
