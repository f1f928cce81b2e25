"""What a repository's host reads: issue forms, citation, and the hooks before a commit."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TOOLS = {
    "mypy",
    "ruff",
    "lint-imports",
    "python",  # tools/check_ci.py and pytest
    "cfn-lint",
    "hadolint",
    "check-jsonschema",
    "zizmor",
}


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_a_form_for_a_failed_notebook_lists_the_course():
    (field,) = (
        row for row in read(".github/ISSUE_TEMPLATE/notebook.yml")["body"] if row.get("id") == "notebook"
    )
    course = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert field["attributes"]["options"] == course


def test_the_citation_names_the_packaged_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = read("CITATION.cff")
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]


def test_hooks_run_the_tools_of_the_environment_and_fetch_nothing():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    programs = {hook["entry"].split()[0] for hook in repository["hooks"]}
    assert programs == {f".venv/bin/{tool}" for tool in TOOLS}
