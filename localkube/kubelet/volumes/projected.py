"""ConfigMap, Secret, downward API and projected volumes: their files, and how they are written atomically.

The layout on disk is the kubelet's, because programs watch for it: files lie in a directory named by a
timestamp, ``..data`` is a symlink to it, and each visible name is a symlink into ``..data``. An update writes
a new directory and renames a new ``..data`` over the old one.
"""

import base64
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localkube.kubelet.containers import downward_api

Object = Mapping[str, Any]
DEFAULT_MODE = 0o644


@dataclass(frozen=True)
class VolumeFile:
    """A file's content, permission bits, and owner as containers see it."""

    content: bytes
    mode: int = DEFAULT_MODE
    uid: int = 0


Files = dict[str, VolumeFile]


class PayloadError(Exception):
    """A volume refers to a missing key or field."""


def configmap_files(source: Object, configmap: Object | None, *, mode: int) -> Files:
    """The files of a ``configMap`` volume or projection; none when an optional one is missing."""
    item = configmap or {}
    data = {key: text.encode() for key, text in (item.get("data") or {}).items()}
    data |= {key: base64.b64decode(text) for key, text in (item.get("binaryData") or {}).items()}
    return _chosen(source, data, mode, "configmap references non-existent config key")


def secret_files(source: Object, secret: Object | None, *, mode: int) -> Files:
    """The files of a ``secret`` volume or projection."""
    data = {key: base64.b64decode(text) for key, text in ((secret or {}).get("data") or {}).items()}
    return _chosen(source, data, mode, "references non-existent secret key")


def downward_files(source: Object, pod: Object, *, mode: int, allocatable: Mapping[str, str]) -> Files:
    """The files of a ``downwardAPI`` volume or projection.

    Args:
        pod: The v1.Pod as it is now: labels and annotations may have changed since it started.
        mode: For items without a mode of their own.
        allocatable: What the pod's node offers, in place of limits that are not set.
    """
    files = {}
    for item in source.get("items") or []:
        try:
            text = _field(item, pod, allocatable)
        except downward_api.FieldError as error:
            raise PayloadError(str(error)) from error
        files[item["path"]] = VolumeFile(text.encode(), item.get("mode", mode))
    return files


def _field(item: Object, pod: Object, allocatable: Mapping[str, str]) -> str:
    if "fieldRef" in item:
        return downward_api.field(pod, item["fieldRef"]["fieldPath"])
    reference = item["resourceFieldRef"]
    container = downward_api.find_container(pod, reference["containerName"])
    return downward_api.resource_field(
        container, reference["resource"], reference.get("divisor"), allocatable
    )


def _chosen(source: Object, data: dict[str, bytes], mode: int, complaint: str) -> Files:
    if not source.get("items"):
        return {key: VolumeFile(content, mode) for key, content in data.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in data:
            files[item["path"]] = VolumeFile(data[item["key"]], item.get("mode", mode))
        elif not source.get("optional"):
            raise PayloadError(f"{complaint}: {item['key']}")
    return files


def _check(path: str) -> None:
    """Refuse paths that leave the volume; the API server checks them too."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or parts[0].startswith("..") or not all(parts):
        raise PayloadError(f"the path {path!r} leads out of the volume")


DATA, NEXT = "..data", "..data_tmp"


def write_atomically(
    directory: Path, files: Mapping[str, VolumeFile], *, owner: int = 0, group: int | None = None
) -> bool:
    """Make ``directory`` hold exactly ``files``; return whether anything changed.

    Args:
        owner: The id of the containers' root on the disk; 0 leaves the files the kubelet's.
        group: The id of their group, if it is not root's; their modes let it read.
    """
    for path in files:
        _check(path)
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
        _write_file(fresh / path, file, owner, owner if group is None else group)
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


def _same(current: Path, files: Mapping[str, VolumeFile]) -> bool:
    present = {path for path in current.rglob("*") if not path.is_dir()}
    if present != {current / path for path in files}:
        return False
    return all(_unchanged(current / path, file) for path, file in files.items())


def _unchanged(path: Path, file: VolumeFile) -> bool:
    status = path.stat()
    if stat.S_IMODE(status.st_mode) != file.mode or status.st_size != len(file.content):
        return False
    return path.read_bytes() == file.content


def _make_directory(path: Path) -> None:
    """Create a directory of mode 0755; the kubelet's umask is private."""
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _write_file(path: Path, file: VolumeFile, owner: int, group: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(file.content)
        if owner or file.uid or group:
            os.fchown(descriptor, owner + file.uid, group)
        os.fchmod(descriptor, file.mode)


def _publish(directory: Path, names: set[str], *, keep: str) -> None:
    """Link the visible names into ``..data``, and remove what earlier writes left."""
    present = {path.name for path in directory.iterdir()} - {DATA, keep}
    for name in names - present:
        (directory / name).symlink_to(f"{DATA}/{name}")
    for name in present - names:
        path = directory / name
        if name.startswith("..") and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
