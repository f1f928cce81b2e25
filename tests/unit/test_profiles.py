"""Profiles: the notebooks' parameters for the sizes of the published walk-throughs."""

import ast
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import run_notebooks  # noqa: E402

FULL = tomllib.loads((ROOT / "notebooks" / "settings" / "full.toml").read_text())


@pytest.mark.parametrize("name", FULL)
def test_the_full_profile_has_parameters_of_notebooks(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    statements = ast.parse(notebook.cells[1].source).body
    known = {statement.targets[0].id for statement in statements}
    assert set(FULL[name]) <= known


def test_it_has_the_figures_of_the_eks_workshop():
    workshop = {"epochs": 10, "limit": 0, "batch_size": 128, "model": "workshop"}
    assert FULL["06_data_parallel"] == workshop


def test_a_profile_is_read_by_its_name_and_another_name_is_an_error(capsys):
    assert run_notebooks.read_arguments(["--profile", "full"]).profile == FULL
    assert run_notebooks.read_arguments([]).profile == {}
    for name in ("nothing", "cifar10"):
        with pytest.raises(SystemExit):
            run_notebooks.read_arguments(["--profile", name])
        assert "no such profile" in capsys.readouterr().err
