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
    known = {each.targets[0].id for each in statements}
    assert set(FULL[name]) <= known


def test_it_has_the_figures_of_the_eks_workshop():
    workshop = {"epochs": 10, "limit": 0, "batch_size": 128, "model": "workshop"}
    assert FULL["06_data_parallel"] == workshop


def test_the_full_profile_has_the_sizes_of_the_other_walk_throughs():
    assert FULL["05_indexed_job"] == {"dataset": "mnist", "epochs": 1}
    elastic_job = {"limit": 0, "epochs": 10, "batch_size": 128, "model": "workshop"}
    found = FULL["21_elastic_from_a_bucket"]
    assert {name: found[f"cifar_{name}"] for name in elastic_job} == elastic_job
    assert FULL["10_parameter_server"] == {"limit": 0, "epochs": 5, "minibatch": 64}
    assert FULL["11_elastic_scheduling"]["limit"] == 0


def test_the_full_language_model_is_gpt_2s():
    """Radford et al. (2019), table 2: 12 layers of width 768, and a context of 1024 tokens."""
    size = {"layers": 12, "width": 768, "context": 1024}
    assert FULL["14_language_model"] == size | {"steps": 2000}
    assert FULL["15_where_the_step_goes"] == size


def test_a_profile_is_read_by_its_name_and_another_name_is_an_error(capsys):
    assert run_notebooks.read_arguments(["--profile", "full"]).profile == FULL
    assert run_notebooks.read_arguments([]).profile == {}
    for name in ("nothing", "cifar10"):
        with pytest.raises(SystemExit):
            run_notebooks.read_arguments(["--profile", name])
        assert "no such profile" in capsys.readouterr().err
