"""Files on this machine about clusters at a cloud: their places and kubeconfigs.

They are a convenience: a cluster is found at the cloud from any machine.
"""

import configparser
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kitlib import config
from kitlib.k8s.client import make_kubeconfig
from trainyard_kit.clouds.spec import ClusterInfo


class ClusterStore:
    """The files of the clusters of ``eks`` or ``gke``, 0600 in folders of 0700."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def kubeconfig(self, name: str) -> Path:
        """Path of a cluster's kubeconfig."""
        return self._folder / f"{name}.kubeconfig"

    def read(self, name: str) -> dict[str, str | None] | None:
        """Read where a cluster is; None if it is not known."""
        try:
            return json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, where: Mapping[str, str | None]) -> None:
        """Remember where a cluster is."""
        self._write(self._folder / f"{name}.json", json.dumps(dict(where)))

    def write_kubeconfig(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a cluster's kubeconfig."""
        self._write(self.kubeconfig(name), yaml.safe_dump(dict(content), sort_keys=False))

    def forget(self, name: str) -> None:
        """Delete the files of a cluster."""
        for path in (self._folder / f"{name}.json", self.kubeconfig(name)):
            path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """List the clusters that are known."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    @property
    def _folder(self) -> Path:
        return config.state_folder() / self.provider

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = path.with_suffix(f"{path.suffix}.{os.getpid()}")
        aside.touch(mode=0o600)
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)


def exec_kubeconfig(name: str, found: ClusterInfo, program: Mapping[str, object]) -> dict[str, Any]:
    """Build a kubeconfig whose credentials come from a program, its ``exec``; it holds no secret."""
    server = {"server": found.endpoint, "certificate-authority-data": found.authority}
    return make_kubeconfig(name, server, name, {"exec": {"interactiveMode": "Never", **program}})


def read_ini(file: Path) -> configparser.RawConfigParser:
    """Parse an INI file; empty where it is missing or invalid."""
    read = configparser.RawConfigParser(strict=False)
    try:
        read.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return configparser.RawConfigParser()
    return read
