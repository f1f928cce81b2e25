"""Local files about cloud clusters: their locations and kubeconfigs.

They are a convenience: a cluster can be found at the cloud from any machine.
"""

import configparser
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.k8s import manifests, names
from kitlib.k8s.kubeconfig import make_kubeconfig, write_whole
from trainyard_kit.clouds.spec import ClusterInfo


class ClusterStore:
    """The files of the clusters of ``eks`` or ``gke``, 0600 in folders of 0700."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def kubeconfig(self, name: str, location: Mapping[str, str | None]) -> Path:
        """Path of a cluster's kubeconfig, which differs by location."""
        parts = (names.slug(value) for value in location.values() if value)
        return self._folder / ".".join((name, *parts, "kubeconfig"))

    def read(self, name: str) -> dict[str, str | None] | None:
        """Read a cluster's location; None if it is not stored."""
        try:
            return json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, location: Mapping[str, str | None]) -> None:
        write_whole(self._folder / f"{name}.json", json.dumps(dict(location)))

    def write_kubeconfig(
        self, name: str, location: Mapping[str, str | None], content: Mapping[str, Any]
    ) -> None:
        write_whole(self.kubeconfig(name, location), manifests.write([dict(content)]))

    def forget(self, name: str, location: Mapping[str, str | None]) -> None:
        """Delete the files of a cluster, but not those of one with its name elsewhere."""
        self.kubeconfig(name, location).unlink(missing_ok=True)
        if self.read(name) == dict(location):
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))

    @property
    def _folder(self) -> Path:
        return config.state_folder() / self.provider


def exec_kubeconfig(name: str, info: ClusterInfo, program: Mapping[str, object]) -> dict[str, Any]:
    """Build a kubeconfig with an exec credential plugin; it holds no secret."""
    server = {"server": info.endpoint, "certificate-authority-data": info.authority}
    return make_kubeconfig(name, server, name, {"exec": {"interactiveMode": "Never", **program}})


def read_ini(file: Path) -> configparser.RawConfigParser:
    """Parse an INI file; empty where it is missing or invalid."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return configparser.RawConfigParser()
    return parser
