"""Fixtures of the tests that run programs: a trainer runs in the process of its test, which is quick."""

import json

import pytest
import torch

from ..localkube.conftest import empty_state, no_clusters_of_other_tests

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
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    return run
