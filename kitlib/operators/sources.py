"""Manifests from where they are released: fetched, and checked by a digest of what is in them.

Proxies are honoured as the environment names them. What is done with the files is not here.
"""

import hashlib
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from kitlib.clusters.machine import manifests_here
from kitlib.errors import InstallFailed
from kitlib.operators.catalog import Source

CONNECT_SECONDS, READ_SECONDS = 10, 60
CHUNK_BYTES = 2**18


def fetch(source: Source, folder: Path, *, report: Callable[[str], None]) -> None:
    """Put what a source has into a new folder.

    Raises:
        InstallFailed: It cannot be reached, was cut, or is not what was checked before.
    """
    with tempfile.TemporaryFile() as file:
        _download(source.url, file, report)
        folder.mkdir()
        if source.folder:
            _unpack(source, file, folder)
        else:
            (folder / PurePosixPath(source.url).name).write_bytes(file.read())
    if (found := digest(folder)) != source.digest:
        raise InstallFailed(
            f"the manifests are not those that the kit was tested with: their digest is {found}",
            about=source.url,
            fix=f"fetch them another way and compare: the digest should be {source.digest}",
        )


def kept(program: str, source: Source) -> Path | None:
    """Return where this machine has what a source has, beside a program of local clusters; None if nowhere.

    Then no network is needed, whichever cluster it is for.
    """
    found = manifests_here(program) if program else None
    return found if found and digest(found) == source.digest else None


def digest(folder: Path) -> str:
    """Return the SHA-256 of the names and the contents of all files in a folder.

    As of a text with a line ``<sha256>  <path>`` for each file, in the order of the paths: what
    ``sha256sum`` prints in that folder.
    """
    lines = sorted(
        (path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256("".join(f"{sha}  {name}\n" for name, sha in lines).encode()).hexdigest()


def _download(url: str, file: IO[bytes], report: Callable[[str], None]) -> None:
    import requests  # seldom needed

    done = 0
    try:
        with requests.get(url, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK_BYTES):
                done += file.write(chunk)
                report(f"fetching its manifests, {done / 1e6:.1f} MB")
    except requests.RequestException as error:
        raise InstallFailed(
            f"its manifests cannot be fetched: {error}",
            about=url,
            fix="see that the network is there, and that HTTPS_PROXY is right if there is a proxy",
        ) from error
    file.seek(0)


def _unpack(source: Source, file: IO[bytes], folder: Path) -> None:
    """Put one folder of an archive into ``folder``; the archive has one top folder of its own."""
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            for member in archive:
                inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if member.isfile() and inside.is_relative_to(source.folder):
                    member.name = str(inside.relative_to(source.folder))
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InstallFailed(
            f"its manifests cannot be unpacked: {error}", about=source.url, fix="try again"
        ) from error
