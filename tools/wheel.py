"""Build the wheels of Kubernetes and of the operators, for machines without Go.

There are two, because an index rejects a file of 100 MB: ``trainyard-kit-controlplane`` and
``trainyard-kit-operators``.

    .venv/bin/python tools/wheel.py --output dist          # for this machine's architecture
    .venv/bin/python tools/wheel.py --output dist amd64 arm64

Programs built without cgo are static, so the tag manylinux_2_17 is correct. Other architectures are
cross-compiled and also cached. zig compiles plain mode's library.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import licenses

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from localkube.controlplane import binaries, build, programs  # noqa: E402
from localkube.controlplane.recipes import RECIPES  # noqa: E402
from localkube.errors import LocalClusterError  # noqa: E402
from localkube.paths import CONTENTS, OPERATORS_PACKAGE, PACKAGE, cache_dir, private_dir, target  # noqa: E402
from localkube.runtime import preload  # noqa: E402

PACKAGING = ROOT / "packaging"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
Report = Callable[[str], None]


def control_plane(architecture: str, scratch: Path, report: Report) -> dict[Path, str]:
    """Return the programs of the control plane's wheel, each with the fingerprint of its sources.

    Args:
        architecture: ``amd64`` or ``arm64``.
        scratch: A folder for files of this wheel.
        report: Called with lines of progress.

    Raises:
        LocalClusterError: One of them cannot be built.
    """
    binaries_by_name = dict.fromkeys(binaries.build_for(architecture, report=report), build.fingerprint())
    if importlib.util.find_spec("ziglang") is None:
        report("Without plain mode's library, which needs the package ziglang; machines compile it")
        return binaries_by_name
    machine = MACHINES[architecture]
    # zig has the symbols of that glibc, so that the wheel's tag is correct for this part as well.
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17"]
    report(f"Compiling plain mode's library for {architecture}")
    preload.compile_library(compiler, scratch / preload.NAME)
    return binaries_by_name | {scratch / preload.NAME: preload.key(machine)}


def operators(architecture: str, scratch: Path, report: Report) -> dict[Path, str]:
    """Return a reproducible archive of each operator's program and manifests."""
    files = {}
    for name, folder in programs.build_for(architecture, report=report).items():
        archive = scratch / f"{name}.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, arcname=name, filter=_undated)
        files[archive] = RECIPES[name].fingerprint
    return files


def _undated(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# Each wheel's folder in packaging/, its import name, and what collects its programs.
WHEELS = {"controlplane": (PACKAGE, control_plane), "operators": (OPERATORS_PACKAGE, operators)}


def make(name: str, architecture: str, output: Path, *, report: Report) -> Path:
    """Make a wheel for one architecture and return it.

    Args:
        name: A key of `WHEELS`.
        architecture: ``amd64`` or ``arm64``.
        output: The folder for it.
        report: Called with lines of progress.

    Raises:
        LocalClusterError: The build fails, or setuptools does.
    """
    package, collect = WHEELS[name]
    with tempfile.TemporaryDirectory() as scratch:
        collected = collect(architecture, Path(scratch), report)
        project = shutil.copytree(PACKAGING / name, Path(scratch) / "project")
        shutil.copy(PACKAGING / "setup.py", project)
        folder = project / package / "binaries"
        folder.mkdir()
        for path in collected:
            shutil.copyfile(path, folder / path.name)
            (folder / path.name).chmod(0o755)
        contents = {path.name: fingerprint for path, fingerprint in collected.items()}
        (folder / CONTENTS).write_text(json.dumps(contents, indent=1) + "\n")
        (project / "VERSION").write_text(version())
        report("Collecting the licence texts of its modules")
        _add_licenses(project, folder, Path(scratch) / "unpacked", report)
        report(f"Packing {', '.join(contents)} for {architecture}")
        _pack(project, Path(scratch), architecture)
        (wheel,) = Path(scratch).glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, output / wheel.name))


def _add_licenses(project: Path, binaries: Path, unpacked: Path, report: Report) -> None:
    for packed in binaries.glob("*.tar"):
        with tarfile.open(packed) as archive:
            archive.extractall(unpacked, filter="data")
    go = build.obtain_go(private_dir(cache_dir() / "controlplane"), report)
    without = licenses.collect([binaries, unpacked], project / "licenses", go=go)
    if without:
        raise LocalClusterError(
            f"no licence text is in {', '.join(without)}", about=str(project), fix="see tools/licenses.py"
        )
    shutil.copy(ROOT / "LICENSE", project)


def version() -> str:
    """Return the kit's version."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def _pack(project: Path, folder: Path, architecture: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(project)]
    environment = os.environ | {"TRAINYARD_PLATFORM": f"manylinux_2_17_{MACHINES[architecture]}"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise LocalClusterError(
            f"the wheel could not be packed:\n{process.stdout}{process.stderr}",
            about=str(project),
            fix="pip install 'setuptools>=77'",
        )


def _architecture(text: str) -> str:
    if text not in MACHINES:  # argparse's choices refuse an empty list in Python 3.11
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(MACHINES)}")
    return text


def parse(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    """Parse the command line: the architectures, by default this machine's, and the folder of the wheels."""
    parser = argparse.ArgumentParser(description="Make the wheels of Kubernetes and of the operators.")
    parser.add_argument("architecture", nargs="*", type=_architecture, help="default: this machine's")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    return parser.parse_args(arguments)


def main(arguments: Iterable[str] | None = None) -> int:
    """Make the wheels that are asked for."""
    options = parse(arguments)
    architectures = options.architecture or [target()[1]]
    for name, architecture in itertools.product(WHEELS, architectures):
        try:
            wheel = make(name, architecture, options.output, report=lambda line: print(line, flush=True))
        except LocalClusterError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
