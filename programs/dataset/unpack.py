"""Unpack archives safely into one folder."""

import gzip
import shutil
import stat
import sys
import zipfile
import zlib
from pathlib import Path

from events import Meter, PreparationError

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # without the filters of PEP 706
    from backports import tarfile  # type: ignore[no-redef]

BLOCK = 2**20


def unpack(archive: Path, into: Path) -> None:
    """Unpack a ``.tar.gz``, a ``.zip``, or a single gzip file.

    Raises:
        PreparationError: The archive is damaged, or has a member with a path outside the folder.
        OSError: The volume is full or not writable.
    """
    into.mkdir(parents=True, exist_ok=True)
    try:
        if archive.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(archive) as tar:
                tar.extractall(into, filter="data")
        elif archive.suffix == ".zip":
            _unzip(archive, into)
        else:
            with gzip.open(archive) as packed, (into / archive.stem).open("wb") as file:
                shutil.copyfileobj(packed, file, BLOCK)
    except tarfile.FilterError as error:
        raise PreparationError(f"{archive.name} was not unpacked: {error}") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PreparationError(f"{archive.name} is damaged: {error}") from error


def _unzip(archive: Path, into: Path) -> None:
    root = into.resolve()
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            path = (root / member.filename).resolve()
            if not path.is_relative_to(root) or stat.S_ISLNK(member.external_attr >> 16):
                raise PreparationError(
                    f"{archive.name} was not unpacked: {member.filename!r} would be outside the folder"
                )
        meter = Meter(f"unpacking {archive.name}", len(members))
        for member in members:
            packed.extract(member, root)
            meter.add(1)
