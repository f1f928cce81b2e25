"""Write a wheel's bill of materials (CycloneDX 1.6): Python packages as pinned, Go modules as compiled in.

CycloneDX's own programs write them: ``cyclonedx-py`` from the packages that ``uv`` resolves,
``cyclonedx-gomod`` from the modules that Go records in each program. This module merges the bills of a
wheel's programs. They have no serial number and no time, so the same wheel has the same bill.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

GOMOD = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
LINUX = "x86_64-manylinux_2_28"
# By package: the project's folder, the extras of its bill, and distributions of the same release, which are
# not resolved.
PROJECTS: dict[str, dict[str, Any]] = {
    "trainyard_kit": {
        "extras": ("clouds", "workshop"),
        "beside": ("trainyard-kit-localkube", "trainyard-kit-controlplane", "trainyard-kit-operators"),
    },
    "trainyard_kit_localkube": {"folder": "localkube", "beside": ("trainyard-kit-controlplane",)},
}


def write(wheel: Path, output: Path, *, source: Path, scratch: Path, environment: Mapping[str, str]) -> Path:
    """Write the bill of a wheel into a folder.

    Args:
        wheel: The kit's, localkube's, the control plane's or the operators'.
        output: The folder.
        source: The files of the release.
        scratch: A folder for intermediate files.
        environment: The environment of the programs.

    Raises:
        CalledProcessError: One of CycloneDX's programs, uv or go fails.
    """
    package, version, *_, platform = wheel.stem.split("-")
    if platform == "any":
        document = python_packages(source, scratch, environment, version=version, **PROJECTS[package])
        goal = output / f"{package}.cdx.json"
    else:
        root = {"type": "application", "name": package, "version": version, "bom-ref": wheel.name}
        document = merge(root, list(go_modules(wheel, scratch, environment)))
        goal = output / f"{package}-{platform.removeprefix('manylinux_2_17_')}.cdx.json"
    goal.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return goal


def python_packages(
    source: Path,
    scratch: Path,
    environment: Mapping[str, str],
    *,
    version: str,
    folder: str = "",
    extras: Sequence[str] = (),
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the bill of the packages that ``pip install`` of a project with extras installs, as pinned."""
    project = str(Path(folder, "pyproject.toml"))
    uv = Path(sys.executable).with_name("uv")
    pins, bill = scratch / "requirements.txt", scratch / "packages.json"
    resolve = [
        "pip",
        "compile",
        "--quiet",
        *(f"--extra={extra}" for extra in extras),
        "--constraint=constraints.txt",
    ]
    resolve += ["--no-annotate", "--no-header", "--python-version=3.11", f"--python-platform={LINUX}"]
    _run([uv, *resolve, "--output-file", pins, project], source, environment)
    engine = ["tool", "run", "--constraints=constraints.txt", "--from=cyclonedx-bom", "cyclonedx-py"]
    options: list[str | Path] = [
        f"--pyproject={project}",
        "--mc-type=library",
        "--output-reproducible",
        "--output-file",
        bill,
    ]
    _run([uv, *engine, "requirements", *options, pins], source, environment)
    document = json.loads(bill.read_text())
    document["metadata"]["component"]["version"] = version  # which a project may read from its source
    for name in beside:
        reference = f"pkg:pypi/{name}@{version}"
        component = {"type": "application", "name": name, "version": version, "purl": reference}
        document["components"].append({"bom-ref": reference, **component})
    root = {"ref": document["metadata"]["component"]["bom-ref"]}
    root["dependsOn"] = sorted(component["bom-ref"] for component in document["components"])
    document["dependencies"] = [
        root,
        *(dependency for dependency in document["dependencies"] if dependency["ref"] != root["ref"]),
    ]
    return document


def go_modules(wheel: Path, scratch: Path, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the bill of each Go program in a wheel, Go's own library included."""
    folder = scratch / wheel.stem
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for packed in folder.rglob("*.tar"):
        with tarfile.open(packed) as archive:
            archive.extract(f"{packed.stem}/{packed.stem}", packed.parent, filter="data")
    _run(["go", "install", GOMOD], folder, {**environment, "GOBIN": str(scratch)})
    engine, bill = scratch / "cyclonedx-gomod", scratch / "modules.json"
    options: list[str | Path] = ["-json", "-std", "-noserial", "-notimestamp", "-output", bill]
    for program in sorted(filter(_is_program, folder.rglob("*"))):
        program.chmod(0o755)
        _run([engine, "bin", *options, program], folder, environment)
        yield json.loads(bill.read_text())


def _is_program(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".so":
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def merge(root: dict[str, Any], bills: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the bills of programs into one, with each component once.

    Args:
        root: The component that holds the programs, with its ``bom-ref``.
        bills: CycloneDX documents, each with its program as ``metadata.component``.
    """
    programs = [bill["metadata"]["component"] for bill in bills]
    components = {
        component["bom-ref"]: component for bill in bills for component in bill.get("components", ())
    }
    components |= {program["bom-ref"]: program for program in programs}
    needs: dict[str, set[str]] = {root["bom-ref"]: {program["bom-ref"] for program in programs}}
    dependencies = (dependency for bill in bills for dependency in bill.get("dependencies", ()))
    for dependency in dependencies:
        needs.setdefault(dependency["ref"], set()).update(dependency.get("dependsOn", ()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": [components[ref] for ref in sorted(components)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }


def _run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, stdout=sys.stderr, check=True)
