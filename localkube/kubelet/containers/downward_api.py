"""The downward API: a pod's own fields and resources as text.

Used for environment variables and for files; pure. Which fields are allowed where is checked by the API
server: https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.quantity import parse

_SUBSCRIPT = re.compile(r"(?P<path>metadata\.(?:labels|annotations))\['(?P<key>.*)'\]", re.DOTALL)
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_METADATA = frozenset({"name", "namespace", "uid"})
_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}
_FROM_ALLOCATABLE = frozenset({"cpu", "memory", "ephemeral-storage"})


def field(
    pod: Mapping[str, Any], path: str, *, pod_ips: Sequence[str] = (), host_ips: Sequence[str] = ()
) -> str:
    """Read one field of a pod as a container sees it.

    Args:
        path: A ``fieldPath``, such as ``metadata.labels['app']``, ``spec.nodeName``, ``status.podIP``.
        pod_ips: The pod's addresses; those of ``pod.status`` when empty.
        host_ips: The node's addresses; those of ``pod.status`` when empty.

    Returns:
        The value, empty for a missing label or annotation; all labels or annotations as ``key="value"``
        lines in the order of their keys.
    """
    metadata, spec, status = pod.get("metadata", {}), pod.get("spec", {}), pod.get("status") or {}
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return (metadata.get(subscript["path"].removeprefix("metadata.")) or {}).get(subscript["key"], "")
    group, _, name = path.partition(".")
    if group == "metadata" and name in _METADATA:
        return metadata.get(name, "")
    if group == "metadata" and name in ("labels", "annotations"):
        pairs = sorted((metadata.get(name) or {}).items())
        return "\n".join(f"{key}={_quoted(value)}" for key, value in pairs)
    if path in ("spec.nodeName", "spec.serviceAccountName"):
        return spec.get(name, "")
    addresses = {"podIP": pod_ips or _ips(status, "podIP"), "hostIP": host_ips or _ips(status, "hostIP")}
    if group == "status" and name in addresses:
        return next(iter(addresses[name]), "")
    if group == "status" and name.removesuffix("s") in addresses:
        return ",".join(addresses[name.removesuffix("s")])
    raise ConfigError(f"unsupported fieldPath: {path}")


def resource_field(
    container: Mapping[str, Any],
    resource: str,
    divisor: str | int | None,
    node_allocatable: Mapping[str, str],
) -> str:
    """Read a container's request or limit, divided and rounded up.

    Args:
        divisor: A quantity; none and ``0`` mean 1.
        node_allocatable: The node's allocatable resources: the default for a limit of cpu, memory or
            ephemeral storage that the container does not set.

    Example:
        >>> resource_field({"resources": {"limits": {"cpu": "1500m"}}}, "limits.cpu", "1m", {})
        '1500'
    """
    group, _, name = resource.partition(".")
    if group not in ("limits", "requests") or not (
        name in _FROM_ALLOCATABLE or name.startswith("hugepages-")
    ):
        raise ConfigError(f"unsupported container resource : {resource}")
    amounts = (container.get("resources") or {}).get(group) or {}
    amount = amounts.get(name)
    if amount is None and group == "limits" and name in _FROM_ALLOCATABLE:
        amount = node_allocatable.get(name)
    unit = parse(divisor or 1) or parse(1)
    return str(math.ceil(parse(amount or 0) / unit))


def find_container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    spec = pod["spec"]
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        if container["name"] == name:
            return container
    raise ConfigError(f"container {name} not found")


def _ips(status: Mapping[str, Any], name: str) -> list[str]:
    listed = [entry["ip"] for entry in status.get(name + "s") or []]
    return listed or ([status[name]] if status.get(name) else [])


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f'"{value}"'
    escapes = {ord(character): _escaped(character) for character in set(value)}
    return f'"{value.translate(escapes)}"'


def _escaped(character: str) -> str:
    """Write a character as Go's quoted strings do, because programs read these files back with Go."""
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
