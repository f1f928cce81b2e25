"""docs/dependencies.md has a line for each direct dependency, and none for anything else."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dependencies.md").read_text()
CONTROL_PLANE = ROOT / "localkube" / "controlplane"


def lines():
    """Return the packages that the page's tables name, each as often as it is named."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)


def python_packages():
    """Return what the kit and its local cluster require of others."""
    files = (ROOT / "pyproject.toml", ROOT / "localkube" / "pyproject.toml")
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    lines = [
        line
        for table in projects
        for line in sum(table["optional-dependencies"].values(), table["dependencies"])
    ]
    return {name for line in lines if not (name := Requirement(line).name).startswith("trainyard-kit")}


def go_modules():
    """Return what the control plane requires itself; the operators' modules require the operators alone."""
    required = re.findall(r"^\t(\S+) v\S+$", (CONTROL_PLANE / "go.mod").read_text(), flags=re.MULTILINE)
    assert "k8s.io/kubernetes" in required
    return set(required)


def npm_packages():
    return set(re.findall(r'"(@[\w/.-]+)@[\d.]+"', (ROOT / "tools" / "dev.py").read_text()))


def test_every_direct_dependency_has_one_line_and_every_line_a_dependency():
    expected = python_packages() | go_modules() | npm_packages()
    assert sorted(lines()) == sorted(expected)


def test_every_line_says_what_for_instead_of_what_how_it_is_kept_up_and_its_licence():
    for line in re.findall(r"^\| `.+$", PAGE, flags=re.MULTILINE):
        name, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        assert len(cells) >= 4, name
        assert all(cells), name
