"""The files of ConfigMap, Secret, downward API and projected volumes, before anything is written.

Pure: objects in, files out. Writing them is in ``atomic``, fetching the objects in ``volumes``.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localkube.kubelet.containers import downward_api

Object = Mapping[str, Any]
DEFAULT_MODE = 0o644


@dataclass(frozen=True)
class File:
    """One file of a volume: its bytes and permission bits."""

    content: bytes
    mode: int = DEFAULT_MODE


Files = dict[str, File]


class PayloadError(Exception):
    """A volume asks for a key or a field that is not there."""


def configmap_files(source: Object, configmap: Object | None, *, mode: int) -> Files:
    """Return the files of a ``configMap`` volume or projection; none when an optional one is missing.

    Args:
        source: With ``items`` and ``optional``.
        configmap: The v1.ConfigMap, or None.
        mode: For items without a mode of their own.

    Raises:
        PayloadError: An item's key is missing, and the source is not optional.
    """
    found = configmap or {}
    data = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    data |= {key: base64.b64decode(text) for key, text in (found.get("binaryData") or {}).items()}
    return _chosen(source, data, mode, "configmap references non-existent config key")


def secret_files(source: Object, secret: Object | None, *, mode: int) -> Files:
    """Return the files of a ``secret`` volume or projection, as ``configmap_files`` does."""
    data = {key: base64.b64decode(text) for key, text in ((secret or {}).get("data") or {}).items()}
    return _chosen(source, data, mode, "references non-existent secret key")


def downward_files(source: Object, pod: Object, *, mode: int, allocatable: Mapping[str, str]) -> Files:
    """Return the files of a ``downwardAPI`` volume or projection.

    Args:
        source: With ``items``.
        pod: The v1.Pod as it is now: labels and annotations may have changed since it started.
        mode: For items without a mode of their own.
        allocatable: What the pod's node offers, in place of limits that are not set.

    Raises:
        PayloadError: There is no such field, resource or container.
    """
    files = {}
    for item in source.get("items") or []:
        try:
            text = _field(item, pod, allocatable)
        except downward_api.FieldError as error:
            raise PayloadError(str(error)) from error
        files[_checked(item["path"])] = File(text.encode(), item.get("mode", mode))
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
        return {_checked(key): File(content, mode) for key, content in data.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in data:
            files[_checked(item["path"])] = File(data[item["key"]], item.get("mode", mode))
        elif not source.get("optional"):
            raise PayloadError(f"{complaint}: {item['key']}")
    return files


def _checked(path: str) -> str:
    """The API server has checked it too, but a file that escapes would be written as the agent."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or parts[0].startswith("..") or not all(parts):
        raise PayloadError(f"the path {path!r} leads out of the volume")
    return path
