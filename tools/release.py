"""Build the artifacts of a release reproducibly in dist/, and report missing ones.

    .venv/bin/python tools/release.py                       # make release
    .venv/bin/python tools/release.py --compare dist        # tools/dev.py reproduce: build it again, compare

Everything is built from the files of the last commit, in a temporary folder with its own cache, so a release
never contains a program compiled earlier by another Go. Attestations and publication are steps of
``.github/workflows/release.yml``; bills of materials are in ``sbom.py``.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import sbom

ROOT = Path(__file__).resolve().parent.parent
SUMS, ABOUT = "SHA256SUMS", "BUILDINFO.json"
REPRODUCED = ("wheels", "sbom")


class CannotHere(Exception):
    """The reason why a part of the release cannot be built on this machine."""


@dataclass(frozen=True)
class Build:
    """One build of a release.

    Attributes:
        source: The files of the commit.
        about: The commit, and the versions that determine the bytes.
        scratch: A temporary folder.
        output: The folder of the release.
        environment: The environment of all commands, with the commit's date and this build's caches.
    """

    source: Path
    about: Mapping[str, str]
    scratch: Path
    output: Path
    environment: Mapping[str, str]

    @property
    def version(self) -> str:
        """The version of the kit in ``pyproject.toml``."""
        return tomllib.loads((self.source / "pyproject.toml").read_text())["project"]["version"]

    def run(self, *command: str | Path, cwd: Path | None = None, **variables: str) -> None:
        """Run a command of the build in the commit's files, with its output.

        Raises:
            CannotHere: It fails.
        """
        arguments = [str(word) for word in command]
        environment = {**self.environment, **variables}
        process = subprocess.run(arguments, cwd=cwd or self.source, env=environment, check=False)
        if process.returncode:
            raise CannotHere(f"`{' '.join(arguments)[:120]}` ended with {process.returncode}")


def wheels(build: Build) -> None:
    """Build source distributions of the kit and of localkube, their wheels, and the control plane's."""
    build_kit(build)
    build.run(sys.executable, build.source / "tools" / "wheel.py", "--output", build.output)


def build_kit(build: Build) -> None:
    """Build source distributions of the kit and of localkube, and a wheel from each."""
    uv: list[str | Path] = [
        Path(sys.executable).with_name("uv"),
        "build",
        "--quiet",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    for project in (build.source, build.source / "localkube"):
        build.run(*uv, "--no-create-gitignore", "--out-dir", build.output, project, TRAINYARD_RELEASE="1")
    for source in build.output.glob("trainyard_kit*.tar.gz"):
        strip_dates(source, int(build.environment["SOURCE_DATE_EPOCH"]))


def strip_dates(archive: Path, epoch: int) -> None:
    """Rewrite a source distribution without this machine's times, users and file order."""
    buffer = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=buffer) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(filter(tarfile.TarInfo.isfile, old), key=lambda info: info.name):
            clean = tarfile.TarInfo(member.name)
            clean.size, clean.mtime = member.size, epoch
            clean.mode = 0o755 if member.mode & 0o100 else 0o644
            new.addfile(clean, old.extractfile(member))
    archive.write_bytes(buffer.getvalue())


def materials(build: Build) -> None:
    """Write a bill of materials for each wheel."""
    for wheel in sorted(build.output.glob("*.whl")):
        try:
            sbom.write(
                wheel, build.output, source=build.source, scratch=build.scratch, environment=build.environment
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise CannotHere(str(error)) from error


def bundle(build: Build) -> None:
    """Build the bundle of Kubernetes and the operators for machines without a network."""
    obtain = [sys.executable, "-m", "localkube.controlplane", "--operators"]
    build.run(*obtain, TRAINYARD_CONTROLPLANE="build")
    goal = build.output / f"trainyard-bundle-{build.version}-linux-{os.uname().machine}.tar.gz"
    kit = [sys.executable, "-c", "from trainyard_kit.cli.main import main; main()"]
    build.run(*kit, "bundle", "create", "--without-wheels", goal, TRAINYARD_CONTROLPLANE="cache")


def site(build: Build) -> None:
    """Build the web site with the executed notebooks in reports/."""
    missing = [
        path.stem
        for path in sorted(ROOT.glob("notebooks/*.ipynb"))
        if not (ROOT / "reports" / path.name).exists()
    ]
    if missing:
        raise CannotHere(f"reports/ lacks {len(missing)} executed notebooks: `make run`")
    build.run(sys.executable, "tools/dev.py", "site", cwd=ROOT)
    with tarfile.open(build.output / f"trainyard-site-{build.version}.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "build" / "site", arcname="site")


def image(build: Build) -> None:
    """Build the trainers' image for this architecture."""
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        raise CannotHere("no container engine runs")
    build.run(sys.executable, "tools/dev.py", "image")


def attestation(build: Build) -> None:
    """Report that only GitHub's runners can sign attestations."""
    raise CannotHere("signed in .github/workflows/release.yml, by the identity of its run")


PARTS: dict[str, Callable[[Build], None]] = {
    "wheels": wheels,
    "sbom": materials,
    "bundle": bundle,
    "site": site,
    "image": image,
    "attestation": attestation,
}


@contextlib.contextmanager
def prepared_build(output: Path, *, commit: str = "HEAD", cold: bool = False) -> Iterator[Build]:
    """Check out a commit's files to a folder with a unique name.

    Args:
        output: The folder of the release.
        commit: A commit of this repository.
        cold: Whether to compile everything without Go's cache.
    """
    os.umask(0o022)  # archives contain file modes
    output.mkdir(parents=True, exist_ok=True)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=ROOT / "build") as folder:
        scratch = Path(folder)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(scratch / "source", filter="tar")
        environment = os.environ | {
            "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct", commit),
            "PYTHONPATH": str(scratch / "source"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(scratch / "cache"),
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
            "GOCACHE": str(scratch / "go") if cold else command_output("go", "env", "GOCACHE"),
        }
        yield Build(scratch / "source", about(commit), scratch, output.resolve(), environment)


def about(commit: str) -> dict[str, str]:
    """Return the commit, and the versions that determine the bytes of a release."""
    return {
        "commit": git("rev-parse", commit),
        "go": command_output("go", "env", "GOVERSION"),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("setuptools", "ziglang")},
    }


def git(*arguments: str) -> str:
    """Return git's output in the repository."""
    return command_output("git", *arguments)


def command_output(*command: str) -> str:
    """Return a command's output in the repository's folder.

    Raises:
        SystemExit: It cannot be run.
    """
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: a release is built with git and Go from a clone: {error}")
    return process.stdout.strip()


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a release, by its name."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (SUMS, ABOUT))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read_checksums(folder: Path) -> dict[str, str]:
    """Read SHA256SUMS of a folder, as ``sha256sum --check`` does."""
    lines = (folder / SUMS).read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def differences(first: Path, second: Path) -> list[str]:
    """Report files that differ from the first release's checksums, and differing members of wheels."""
    first_digests, digests = read_checksums(first), checksums(second)
    lines = []
    for name in sorted(digests):
        if first_digests.get(name) == digests[name]:
            continue
        lines.append(f"{name}: {'differs' if name in first_digests else 'is not in the first release'}")
        if name.endswith(".whl") and (first / name).exists():
            first_members, second_members = (dict(members(folder / name)) for folder in (first, second))
            lines += [
                f"  {key}"
                for key in sorted(first_members.keys() | second_members)
                if first_members.get(key) != second_members.get(key)
            ]
    return lines or ([] if digests else ["nothing was built, so nothing was compared"])


def members(wheel: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield name, checksum, date and mode of each member of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            yield member.filename, (member.CRC, member.date_time, member.external_attr, member.compress_size)


def make(build: Build, parts: Iterable[str]) -> dict[str, str]:
    """Build parts of a release and its checksums; return the reasons for missing ones."""
    missing = {}
    for part in parts:
        print(f"== {part}", flush=True)
        try:
            PARTS[part](build)
        except CannotHere as reason:
            missing[part] = str(reason)
    lines = [f"{digest}  {name}\n" for name, digest in checksums(build.output).items()]
    (build.output / SUMS).write_text("".join(lines))
    (build.output / ABOUT).write_text(json.dumps(build.about, indent=1) + "\n")
    return missing


def release(options: argparse.Namespace) -> int:
    """Build a release, and list present and missing parts; fail if a required one is missing."""
    if changed := git("status", "--porcelain"):
        print(f"The release contains the last commit, without {len(changed.splitlines())} changed files.")
    shutil.rmtree(options.output, ignore_errors=True)
    with prepared_build(options.output) as build:
        if options.tag not in ("", f"v{build.version}"):
            sys.exit(f"error: the tag is {options.tag}, and pyproject.toml says {build.version}")
        missing = make(build, options.part or PARTS)
    print(f"\nBuilt in {options.output}:")
    for path in sorted(options.output.iterdir()):
        print(f"  {path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    for part, reason in missing.items():
        print(f"Not built here: {part}: {reason}")
    return len(missing.keys() & set(options.need)) > 0


def reproduce(first: Path) -> int:
    """Build wheels and bills of materials of a release's commit again, compiling everything, and compare."""
    first_about = json.loads((first / ABOUT).read_text())
    with tempfile.TemporaryDirectory(prefix="again-") as folder:
        with prepared_build(Path(folder), commit=first_about["commit"], cold=True) as build:
            for name in (name for name in first_about if first_about[name] != build.about.get(name)):
                print(f"{name} was {first_about[name]}, and is {build.about.get(name)}: the bytes may differ")
            missing = make(build, REPRODUCED)
        mismatches = differences(first, Path(folder))
        count = len(checksums(Path(folder)))
    mismatches += [f"{part}: {reason}" for part, reason in missing.items()]
    print("\n".join(mismatches) if mismatches else f"{count} files are the same, byte for byte")
    return len(mismatches) > 0


def main(arguments: Iterable[str] | None = None) -> int:
    """Build a release, or compare one with another build of the same commit."""
    parser = argparse.ArgumentParser(description="Build what a release publishes.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="build this part; default: all")
    parser.add_argument(
        "--need", action="append", default=[], choices=list(PARTS), help="fail without this part"
    )
    parser.add_argument("--tag", default="", help="fail unless it is the tag of this version")
    parser.add_argument(
        "--compare", type=Path, metavar="DIR", help="build again, and compare with this release"
    )
    options = parser.parse_args(arguments)
    return reproduce(options.compare) if options.compare else release(options)


if __name__ == "__main__":
    sys.exit(main())
