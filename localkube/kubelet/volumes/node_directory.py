"""/var/lib/kubelet of a virtual node: a directory of its own below the cluster's.

Nodes share one machine, which may have a real kubelet. A hostPath below /var/lib/kubelet is mapped to the
node's directory, and so are such paths in the answers of plugins.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localkube.kubelet.volumes.host_path import check

KUBELET = "/var/lib/kubelet"
# Where plugins describe devices: https://github.com/cncf-tags/container-device-interface
CDI = ("/var/run/cdi", "/run/cdi")


class NodeDirectory:
    """The directory of one node.

    Attributes:
        path: The directory that pods see as /var/lib/kubelet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def device_plugins(self) -> Path:
        return self.path / "device-plugins"

    @property
    def cdi(self) -> Path:
        return self.path.with_name(self.path.name + ".cdi")

    def create(self) -> None:
        """Create the directories in which plugins expect to find sockets and volumes."""
        self.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in ("device-plugins", "plugins", "plugins_registry", "pods"):
            check(name, "DirectoryOrCreate", beneath=self.path)

    def is_mounted_by(self, pod: Mapping[str, Any]) -> bool:
        """Check whether a pod mounts it, and so may contain plugins."""
        paths = [(volume.get("hostPath") or {}).get("path") for volume in pod["spec"].get("volumes") or []]
        return any(path and self.resolve(path) for path in paths)

    def resolve(self, place: str) -> tuple[Path, str] | None:
        """Map a path of the node to this machine; None for a path that all nodes share.

        Returns:
            A directory, and a path beneath it, in which pods may have created symlinks.

        Example:
            >>> NodeDirectory(Path("/cluster/node-0")).resolve("/var/lib/kubelet/device-plugins/")
            (PosixPath('/cluster/node-0'), 'device-plugins')
        """
        place = os.path.normpath(place)
        for root, directory in ((KUBELET, self.path), *((folder, self.cdi) for folder in CDI)):
            if place == root or place.startswith(root + "/"):
                return directory, place[len(root) + 1 :]
        return None
