"""Files on this machine about clusters at a cloud: their places and kubeconfigs.

They are a convenience: a cluster is found at the cloud from any machine.
"""

import configparser
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.k8s import manifests, names
from kitlib.k8s.kubeconfig import make_kubeconfig
from trainyard_kit.clouds.spec import ClusterInfo


class ClusterStore:
    """The files of the clusters of ``eks`` or ``gke``, 0600 in folders of 0700."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def kubeconfig(self, name: str, where: Mapping[str, str | None]) -> Path:
        """Path of a cluster's kubeconfig: clusters of one name in two places have one each."""
        place = (names.slug(word) for word in where.values() if word)
        return self._folder / ".".join((name, *place, "kubeconfig"))

    def read(self, name: str) -> dict[str, str | None] | None:
        """Read where a cluster is; None if it is not known."""
        try:
            return json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, where: Mapping[str, str | None]) -> None:
        self._write(self._folder / f"{name}.json", json.dumps(dict(where)))

    def write_kubeconfig(
        self, name: str, where: Mapping[str, str | None], content: Mapping[str, Any]
    ) -> None:
        self._write(self.kubeconfig(name, where), manifests.write([dict(content)]))

    def forget(self, name: str, where: Mapping[str, str | None]) -> None:
        """Delete the files of a cluster; what is remembered of one of its name elsewhere stays."""
        self.kubeconfig(name, where).unlink(missing_ok=True)
        if self.read(name) == dict(where):
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))

    @property
    def _folder(self) -> Path:
        return config.state_folder() / self.provider

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).replace(path)


def exec_kubeconfig(name: str, info: ClusterInfo, program: Mapping[str, object]) -> dict[str, Any]:
    """Build a kubeconfig whose credentials come from a program, its ``exec``; it holds no secret."""
    server = {"server": info.endpoint, "certificate-authority-data": info.authority}
    return make_kubeconfig(name, server, name, {"exec": {"interactiveMode": "Never", **program}})


def read_ini(file: Path) -> configparser.RawConfigParser:
    """Parse an INI file; empty where it is missing or invalid."""
    read = configparser.RawConfigParser(strict=False)
    try:
        read.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return configparser.RawConfigParser()
    return read
