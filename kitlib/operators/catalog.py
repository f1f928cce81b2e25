"""The catalog of operators, and their manifests: downloaded from the release, and verified by digest.

The data are in ``catalog.toml``; the kit's changes to the manifests are kustomizations in
``manifests/operators/``. Proxies are used as the environment variables configure them.
"""

import hashlib
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path, PurePosixPath
from typing import IO

from kitlib.clusters.machine import manifests_here
from kitlib.errors import InstallFailed

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # without the filters of PEP 706
    from backports import tarfile  # type: ignore[no-redef]

TIMEOUT_SECONDS = 60
CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class OperatorPart:
    """A set of objects that are installed together; ``catalog.toml`` describes the attributes."""

    name: str
    version: str
    workload: tuple[str, str, str]
    program: str = ""
    url: str = ""
    folder: str = ""
    digest: str = ""
    then: str = ""
    code: str = ""
    extra: str = ""


def _load() -> dict[str, tuple[OperatorPart, ...]]:
    catalog = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        operator: tuple(OperatorPart(**part | {"workload": tuple(part["workload"])}) for part in parts)
        for operator, parts in catalog.items()
    }


OPERATORS: Mapping[str, tuple[OperatorPart, ...]] = _load()


def fetch(part: OperatorPart, folder: Path, *, report: Callable[[str], None]) -> None:
    """Download a part's manifests into a new folder; raise InstallFailed if their digest differs."""
    with tempfile.TemporaryFile() as file:
        _download(part.url, file, report)
        folder.mkdir()
        _unpack(part, file, folder)
    if (actual := digest(folder)) != part.digest:
        what = f"the manifests differ from those that the kit was tested with: their digest is {actual}"
        fix = f"download them another way and compare: the digest should be {part.digest}"
        raise InstallFailed(what, about=part.url, fix=fix)


def find_local(part: OperatorPart) -> Path | None:
    """Find a part's manifests on this machine, beside its program for local clusters."""
    folder = manifests_here(part.program) if part.program else None
    return folder if folder and digest(folder) == part.digest else None


def digest(folder: Path) -> str:
    """Compute the SHA-256 of the names and contents of all files in a folder.

    It is that of the lines ``<sha256>  <path>`` that ``sha256sum`` prints in that folder, sorted by path.
    """
    lines = sorted(
        (path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256("".join(f"{sha}  {name}\n" for name, sha in lines).encode()).hexdigest()


def _download(url: str, file: IO[bytes], report: Callable[[str], None]) -> None:
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            while chunk := response.read(CHUNK_BYTES):
                done += file.write(chunk)
                report(f"downloading its manifests, {done / 1e6:.1f} MB")
            if response.length:
                raise IncompleteRead(b"", response.length)
    except (OSError, HTTPException) as error:
        fix = "check the network, and HTTPS_PROXY if there is a proxy"
        raise InstallFailed(f"its manifests cannot be downloaded: {error}", about=url, fix=fix) from error
    file.seek(0)


def _unpack(part: OperatorPart, file: IO[bytes], folder: Path) -> None:
    """Extract one folder of an archive, without the archive's top folder."""
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            for member in archive:
                path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if member.isfile() and path.is_relative_to(part.folder):
                    member.name = str(path.relative_to(part.folder))
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        message = f"its manifests cannot be unpacked: {error}"
        raise InstallFailed(message, about=part.url, fix="try again") from error
