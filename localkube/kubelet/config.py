"""The kubelet's configuration; ``localkube.cluster.preparation`` writes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localkube.kubelet.logs.container_log import LogLimits
from localkube.kubelet.nodes.node import NodeSettings


@dataclass(frozen=True)
class PlainSettings:
    """Plain mode: loopback addresses (``network/addresses.py``), preload library and egress socket."""

    octet: int
    low: int
    preload: str
    egress: str


@dataclass(frozen=True)
class KubeletConfig:
    """The kubelet's configuration file, JSON."""

    server: str
    pki: Path
    socket: Path
    pods: Path
    tmpfs: Path
    volumes: Path
    hide: tuple[str, ...]
    version: str
    nodes: tuple[NodeSettings, ...]
    control: Path
    node_states: Path
    simulated: Path
    forkserver: bool
    egress: bool
    metrics: bool = False
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    control_groups: bool = True
    plain: PlainSettings | None = None
    log_limits: LogLimits = LogLimits()

    @property
    def file(self) -> Path:
        return self.control.with_name("kubelet.json")

    @classmethod
    def read(cls, path: Path) -> "KubeletConfig":
        raw = json.loads(path.read_text())
        names = ("pki", "socket", "pods", "tmpfs", "volumes", "control", "node_states", "simulated")
        places = {name: Path(raw[name]) for name in names}
        made = tuple(
            NodeSettings(**node | {"gpu_devices": tuple(node["gpu_devices"])}) for node in raw["nodes"]
        )
        plain = PlainSettings(**raw["plain"]) if raw.get("plain") else None
        log_limits = LogLimits(**raw["log_limits"])
        return cls(
            **raw
            | places
            | {"nodes": made, "hide": tuple(raw["hide"]), "plain": plain, "log_limits": log_limits}
        )
