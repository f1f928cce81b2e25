"""Functions of a learner's own on this machine: with modules beside them, measured, failures named."""

import os
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import RunFailed


def train(steps, name):
    from net.layers import WIDTH

    print("width", WIDTH)
    print(f"{name}: loss {1 / steps}")


def fail_on_rank_1():
    from torch import distributed, ones

    distributed.init_process_group("gloo")
    if distributed.get_rank() == 1:
        raise ValueError("bad label 12")
    distributed.all_reduce(ones(1))


def world_size():
    from torch import distributed

    distributed.init_process_group("gloo")
    try:
        return distributed.get_world_size()
    finally:
        distributed.destroy_process_group()


def test_processes_run_here_with_the_modules_beside_the_notebook_and_are_measured(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text("from . import layers")
    (tmp_path / "net" / "layers.py").write_text("import settings\nWIDTH = settings.WIDTH")
    (tmp_path / "settings.py").write_bytes("# coding: latin-1\nWIDTH = 4  # é\n".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    run = kit.torchrun(train, processes_per_node=2, args={"steps": 2, "name": "own"})
    assert run.wait(timeout=120) is run
    assert run.logs(rank=1) == "width 4\nown: loss 0.5"
    assert list(run.metrics().loss) == [0.5, 0.5]
    assert "2 ranks" in repr(run.plot())
    run.delete()


def test_the_rank_that_failed_first_is_named_with_the_learners_line():
    """torchrun and torch both put the rank before each line of such a traceback."""
    run = kit.torchrun(fail_on_rank_1, processes_per_node=2)
    line = Path(__file__).read_text().splitlines().index('        raise ValueError("bad label 12")') + 1
    with pytest.raises(RunFailed, match="rank 1 failed first: ValueError: bad label 12") as error:
        run.wait(timeout=120)
    assert f"line {line}, in fail_on_rank_1" in error.value.detail
    assert run.why().first.kind == "Exception"
    run.delete()
    run.delete()


def test_a_function_runs_in_a_world_of_one_process():
    before = dict(os.environ)
    with kit.single_process():
        assert world_size() == 1
    assert dict(os.environ) == before
