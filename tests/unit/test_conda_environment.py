"""environment.yml is solved by a conda solver, rattler, with the requirements that the packages state.

No channel is asked: its packages are those that are installed here, with the versions and the dependencies of
their metadata. So two pins that exclude each other, and a name or version that is none, are found offline.
"""

import asyncio
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rattler.exceptions import SolverError

ROOT = Path(__file__).parents[2]
DEPENDENCIES = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
ENVIRONMENT = [entry for entry in DEPENDENCIES if isinstance(entry, str)]  # the rest pip installs
CONDA_NAMES = {
    "torch": "pytorch",
    "kubernetes": "python-kubernetes",
    "backports-tarfile": "backports.tarfile",
}
PYTHON = {"implementation_name": "cpython", "python_version": "3.12", "python_full_version": "3.12.9"}


def conda_name(name):
    name = canonicalize_name(name)
    return CONDA_NAMES.get(name, name)


def depends(distribution):
    """Yield what a distribution needs under Python 3.12, as conda writes it."""
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({**PYTHON, "extra": ""}):
            bounds = str(requirement.specifier)
            yield f"{conda_name(requirement.name)} {bounds}".strip()


def record(name, version, needs=()):
    return {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "depends": list(needs),
        "subdir": "noarch",
        "noarch": "python",
    }


def channel(folder, versions=None):
    """Write a channel of what is installed, each with the version in ``versions`` if it has one there."""
    records = [record("python", "3.12.9"), record("pip", "26.0")]
    records += [record(name, "1.36.3") for name in ("kubernetes-server", "kubernetes-client")]
    records += [record("etcd", re.split("=", line)[1]) for line in ENVIRONMENT if line.startswith("etcd=")]
    for distribution in metadata.distributions():
        name = conda_name(distribution.name)
        version = (versions or {}).get(name, distribution.version.partition("+")[0])
        records.append(record(name, version, depends(distribution)))
    installed = {entry["name"] for entry in records}
    for entry in records:  # what conda's packages do not have: markers of this platform, such as CUDA's
        entry["depends"] = [need for need in entry["depends"] if need.split()[0] in installed]
    packages = {f"{entry['name']}-{entry['version']}-0.tar.bz2": entry for entry in records}
    for subdir in ("noarch", "linux-64"):
        (folder / subdir).mkdir()
        content = packages if subdir == "noarch" else {}
        text = json.dumps({"info": {"subdir": subdir}, "packages": content, "packages.conda": {}})
        (folder / subdir / "repodata.json").write_text(text)
    return rattler.Channel(folder.as_uri())


def solve(source, specs):
    gateway = rattler.Gateway(cache_dir=str(ROOT / "build" / "conda"))
    platforms = [rattler.Subdir("linux-64"), rattler.Subdir("noarch")]
    records = asyncio.run(
        rattler.solve([source], specs, gateway=gateway, platforms=platforms, virtual_packages=[])
    )
    return {entry.name.normalized: str(entry.version) for entry in records}


def test_the_environment_is_solved_with_each_of_its_pins(tmp_path):
    solution = solve(channel(tmp_path), ENVIRONMENT)
    pins = dict(re.split("=", line, maxsplit=1) for line in ENVIRONMENT if "=" in line)
    assert solution.pop("python").startswith(pins.pop("python"))
    assert {name: solution[name] for name in pins} == pins
    assert len(solution) > len(ENVIRONMENT)


def test_pins_that_exclude_each_other_are_found(tmp_path):
    others = [line for line in ENVIRONMENT if not line.startswith("urllib3=")]
    with pytest.raises(SolverError, match="urllib3"):
        solve(channel(tmp_path, {"urllib3": "1.0"}), [*others, "urllib3=1.0"])


def test_neither_linters_nor_test_tools_are_installed():
    names = {re.split("=", line)[0] for line in ENVIRONMENT}
    assert not {name for name in names if re.search("pytest|mypy|ruff|moto|lint|pre-commit|playwright", name)}
