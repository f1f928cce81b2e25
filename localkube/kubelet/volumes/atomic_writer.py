"""Write a set of files into a directory so that a reader sees all of the old ones or all of the new ones.

The layout is the kubelet's, because programs watch for it: the files lie in a directory named by a timestamp,
``..data`` is a symlink to that, and each visible name is a symlink into ``..data``. An update writes a new
directory and renames a new ``..data`` over the old.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from localkube.kubelet.volumes.projected import File

DATA, NEXT = "..data", "..data_tmp"


def write(directory: Path, files: Mapping[str, File]) -> bool:
    """Make ``directory`` hold exactly ``files``; return whether anything had to change.

    Args:
        directory: Made when missing; holds nothing else.
        files: By path relative to the directory; parents are made.

    Raises:
        OSError: The disk refuses.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    _make_directory(directory)
    current = _current(directory)
    if current is not None and _same(current, files):
        return False
    now = datetime.now(UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    fresh = directory / (now + secrets.token_hex(5))
    _make_directory(fresh)
    for path, file in files.items():
        if "/" in path:
            for parent in reversed(Path(path).parents):
                _make_directory(fresh / parent)
        _write_file(fresh / path, file)
    pointer = directory / NEXT
    pointer.unlink(missing_ok=True)
    pointer.symlink_to(fresh.name)
    pointer.rename(directory / DATA)
    _publish(directory, {path.partition("/")[0] for path in files}, keep=fresh.name)
    return True


def _current(directory: Path) -> Path | None:
    try:
        return directory / (directory / DATA).readlink()
    except FileNotFoundError:
        return None


def _same(current: Path, files: Mapping[str, File]) -> bool:
    present = {path for path in current.rglob("*") if not path.is_dir()}
    if present != {current / path for path in files}:
        return False
    return all(_unchanged(current / path, file) for path, file in files.items())


def _unchanged(path: Path, file: File) -> bool:
    status = path.stat()
    if stat.S_IMODE(status.st_mode) != file.mode or status.st_size != len(file.content):
        return False
    return path.read_bytes() == file.content


def _make_directory(path: Path) -> None:
    """The mode is set apart from making it, because the agent's own files are private by its umask."""
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _write_file(path: Path, file: File) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(file.content)
        os.fchmod(descriptor, file.mode)


def _publish(directory: Path, names: set[str], *, keep: str) -> None:
    """Link each visible name into ``..data``, and drop what belongs to earlier writes."""
    present = {path.name for path in directory.iterdir()} - {DATA, keep}
    for name in names - present:
        (directory / name).symlink_to(f"{DATA}/{name}")
    for name in present - names:
        path = directory / name
        if name.startswith("..") and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
