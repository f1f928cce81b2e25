"""ConfigMap, Secret, downward API and projected volumes: their files, and how they are written atomically.

The layout on disk is the kubelet's, because programs watch for it: files lie in a directory named by a
timestamp, ``..data`` is a symlink to it, and each visible name is a symlink into ``..data``. An update writes
a new directory and renames a new ``..data`` over the old one.
"""

import base64
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from localkube.api_path import Object
from localkube.kubelet.containers import downward_api
from localkube.kubelet.containers.expansion import ConfigError

DEFAULT_MODE = 0o644
MAX_FILES = 1 << 16


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A file's content, permission bits, and owner as containers see it."""

    content: bytes
    mode: int = DEFAULT_MODE
    uid: int = 0


Files = dict[str, VolumeFile]


def configmap_data(item: Object) -> dict[str, bytes]:
    data = {key: text.encode() for key, text in (item.get("data") or {}).items()}
    return data | {key: base64.b64decode(text) for key, text in (item.get("binaryData") or {}).items()}


def secret_data(item: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in (item.get("data") or {}).items()}


OBJECTS = {
    "configMap": (configmap_data, "configmap references non-existent config key"),
    "secret": (secret_data, "references non-existent secret key"),
}


@dataclass
class PodPayload:
    """Contents for the volumes of one pod, all of which may contain the same Secret or annotations.

    Attributes:
        items: ConfigMaps and Secrets, by kind and name; each is read once.
        objects: Decoded objects, by ``id``; the objects are kept, so that an id is not reused.
        fields: Texts of the downward API, by their references.
        files: The number of files in the volumes.
    """

    items: dict[tuple[str, str], Object | None] = field(default_factory=dict)
    objects: dict[int, tuple[Object, dict[str, bytes]]] = field(default_factory=dict)
    fields: dict[str, bytes] = field(default_factory=dict)
    files: int = 0

    def count(self, files: int) -> None:
        """Count files before they are computed: one object can be in all volumes of a pod.

        Raises:
            ConfigError: There are too many.
        """
        self.files += files
        if self.files > MAX_FILES:
            raise ConfigError(
                f"the volumes of this pod have more than {MAX_FILES} files of ConfigMaps, Secrets and fields"
            )

    def decode(self, decode: Callable[[Object], dict[str, bytes]], item: Object | None) -> dict[str, bytes]:
        if item is None:
            return {}
        if id(item) not in self.objects:
            self.objects[id(item)] = (item, decode(item))
        return self.objects[id(item)][1]


def downward_files(
    source: Object, pod: Object, *, mode: int, allocatable: Mapping[str, str], contents: PodPayload
) -> Files:
    """Compute the files of a ``downwardAPI`` volume or projection.

    Args:
        pod: The v1.Pod as it is now: labels and annotations may have changed since it started.
        mode: The mode of items without one of their own.
        allocatable: The node's allocatable resources, the default of limits that are not set.
        contents: The contents for all volumes of the pod.
    """
    files = {}
    for item in source.get("items") or []:
        reference = json.dumps([item.get("fieldRef"), item.get("resourceFieldRef")], sort_keys=True)
        if reference not in contents.fields:
            contents.fields[reference] = _field(item, pod, allocatable).encode()
        files[item["path"]] = VolumeFile(contents.fields[reference], item.get("mode", mode))
    return files


def _field(item: Object, pod: Object, allocatable: Mapping[str, str]) -> str:
    if "fieldRef" in item:
        return downward_api.field(pod, item["fieldRef"]["fieldPath"])
    reference = item["resourceFieldRef"]
    container = downward_api.find_container(pod, reference["containerName"])
    return downward_api.resource_field(
        container, reference["resource"], reference.get("divisor"), allocatable
    )


def count_files(source: Object, item: Object | None) -> int:
    """Count the files of a volume or projection of a ConfigMap or Secret, at most."""
    parts = (
        (source.get("items"),)
        if source.get("items")
        else ((item or {}).get("data"), (item or {}).get("binaryData"))
    )
    return sum(len(part or ()) for part in parts)


def object_files(kind: str, source: Object, item: Object | None, *, mode: int, contents: PodPayload) -> Files:
    """Compute the files of a volume or projection of a ConfigMap or Secret: all of it, or its ``items``.

    Args:
        kind: ``configMap`` or ``secret``.
        contents: The contents of all volumes of the pod.
    """
    decode, complaint = OBJECTS[kind]
    data = contents.decode(decode, item)
    if not source.get("items"):
        return {key: VolumeFile(content, mode) for key, content in data.items()}
    files = {}
    for entry in source["items"]:
        if entry["key"] in data:
            files[entry["path"]] = VolumeFile(data[entry["key"]], entry.get("mode", mode))
        elif not source.get("optional"):
            raise ConfigError(f"{complaint}: {entry['key']}")
    return files


def _check(path: str) -> None:
    """Refuse paths that leave the volume; the API server checks them too."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or parts[0].startswith("..") or not all(parts) or "\0" in path:
        raise ConfigError(f"the path {path!r} leads out of the volume")


DATA, NEXT = "..data", "..data_tmp"


def write_atomically(
    directory: Path, files: Mapping[str, VolumeFile], *, owner: int = 0, group: int | None = None
) -> bool:
    """Make ``directory`` contain exactly ``files``; return whether anything changed.

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
    """Link the visible names into ``..data``, and remove the files of earlier writes."""
    present = {path.name for path in directory.iterdir()} - {DATA, keep}
    for name in names - present:
        (directory / name).symlink_to(f"{DATA}/{name}")
    for name in present - names:
        path = directory / name
        if name.startswith("..") and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
