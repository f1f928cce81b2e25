"""The Container Device Interface: a file describes what a device adds to a container.

Hooks are not run: they are programs of the machine.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.kubelet.plugins.rpc import PluginError

MACHINE = Path("/etc/cdi")


@dataclass
class ContainerEdits:
    """What devices add to a container: variables, and mounts as (destination, source, read-only)."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str, bool]] = field(default_factory=list)

    def add(self, edits: Mapping[str, Any]) -> None:
        self.env |= dict(variable.split("=", 1) for variable in edits.get("env") or [])
        for node in edits.get("deviceNodes") or []:
            self.mounts.append((node["path"], node.get("hostPath") or node["path"], False))
        for mount in edits.get("mounts") or []:
            options = mount.get("options") or []
            self.mounts.append((mount["containerPath"], mount["hostPath"], "ro" in options))

    def extend(self, edits: "ContainerEdits") -> None:
        self.env |= edits.env
        self.mounts += edits.mounts


def container_edits(names: Iterable[str], node: Path) -> ContainerEdits:
    """Collect the edits of devices, by names such as ``nvidia.com/gpu=0``.

    Args:
        node: The node's directory of specs, which take precedence over the machine's.
    """
    edits, applied = ContainerEdits(), set()
    for name in names:
        kind, _, device = name.partition("=")
        for spec in _specs(kind, (node, MACHINE)):
            listed = next((entry for entry in spec.get("devices") or [] if entry["name"] == device), None)
            if listed:
                break
        else:
            raise PluginError(f"CDI device injection failed: unresolvable CDI devices {name}")
        if kind not in applied:
            applied.add(kind)
            edits.add(spec.get("containerEdits") or {})
        edits.add(listed.get("containerEdits") or {})
    return edits


def _specs(kind: str, directories: Iterable[Path]) -> Iterable[Mapping[str, Any]]:
    import yaml

    for directory in directories:
        for path in sorted([*directory.glob("*.json"), *directory.glob("*.yaml")]):
            spec = yaml.safe_load(path.read_text())
            if isinstance(spec, dict) and spec.get("kind") == kind:
                yield spec
