"""Write constraints.txt: the exact versions of all direct and indirect requirements.

Run it with the interpreter of an environment in which the tests pass: ``.venv/bin/python tools/pin.py``. The
file has only versions, without addresses and hashes, so that any mirror can be used.
"""

import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = ("compiler", "fuzz", "release", "site", "types")
PROJECTS = (ROOT / "pyproject.toml", ROOT / "localkube" / "pyproject.toml")
OURS = "trainyard-kit"  # the prefix of our own distributions
HEADER = "# Written by tools/pin.py: what the tests ran with. Ranges are in pyproject.toml.\n"


def requirements(projects: Iterable[Path] = PROJECTS) -> list[Requirement]:
    """List the requirements of the projects and their extras, except OPTIONAL ones."""
    lines: list[str] = []
    for path in projects:
        project = tomllib.loads(path.read_text())["project"]
        extras = project["optional-dependencies"].items()
        lines += sum((packages for name, packages in extras if name not in OPTIONAL), project["dependencies"])
    return [Requirement(line) for line in lines if not line.startswith(OURS)]


def closure(requirements: Iterable[Requirement], without: Collection[str] = ()) -> dict[str, str]:
    """Return name and version of every installed distribution that is required here, directly or not.

    Args:
        without: Distributions that are already present, with all their requirements.
    """
    pins: dict[str, str] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    queue = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    ]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in visited or name in without:
            continue
        visited.add(key)
        distribution = metadata.distribution(name)
        pins[name] = distribution.version.partition("+")[0]  # a local version, such as +cpu, is on no index
        extras = requirement.extras | {""}
        for line in distribution.requires or []:
            child = Requirement(line)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append(child)
    return pins


def render(pins: dict[str, str]) -> str:
    """Return the text of a constraints file."""
    return HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def optional(target: Path) -> dict[str, str]:
    """Return the pins of the OPTIONAL extras: as installed, or unchanged."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {canonicalize_name(Requirement(line).name) for extra in OPTIONAL for line in extras[extra]}
    had = dict(line.split("==") for line in target.read_text().splitlines() if not line.startswith("#"))
    installed = {
        distribution.name: distribution.version
        for distribution in metadata.distributions()
        if distribution.name in names
    }
    return {name: installed.get(name) or had[name] for name in names}


def compare(python: str) -> str:
    """Return the pins that are newer in another environment, and packages outside our ranges.

    Args:
        python: The interpreter of that environment.
    """
    uv = [str(Path(sys.executable).with_name("uv")), "pip"]
    listed = {
        command: subprocess.run(
            [*uv, *command.split(), "--python", python], capture_output=True, text=True, check=True
        ).stdout
        for command in ("freeze", "list --outdated")
    }
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    versions = dict(line.split("==") for line in listed["freeze"].splitlines() if "==" in line)
    news = [
        f"{name}: {pins[name]} -> {version}\n"
        for name, version in versions.items()
        if pins.get(name, version) != version
    ]
    return "".join(news) + listed["list --outdated"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        report = ROOT / "reports" / "newest.txt"
        report.parent.mkdir(exist_ok=True)
        report.write_text(compare(sys.argv[2]))
        sys.stdout.write(report.read_text())
        sys.exit()
    if "+" in metadata.version("torch"):
        sys.exit(
            f"torch here is {metadata.version('torch')}, without the packages that the default build needs: "
            "python3 tools/dev.py clean, then TRAINYARD_TORCH=default make setup pins"
        )
    target = ROOT / "constraints.txt"
    target.write_text(render(closure(requirements()) | optional(target)))
    sys.stdout.write(f"{target.name}: {len(target.read_text().splitlines()) - 1} pins\n")
