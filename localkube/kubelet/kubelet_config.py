"""The kubelet's configuration; ``localkube.cluster.preparation`` writes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localkube.host import IdRanges
from localkube.kubelet.logs.container_log import LogLimits
from localkube.kubelet.resources.cgroups import PIDS_LIMIT
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.pressure import TRANSITION_SECONDS


@dataclass(frozen=True)
class PlainSettings:
    """Plain mode: loopback addresses (``network/addresses.py``), preload library and egress socket."""

    octet: int
    low: int
    preload: str
    egress: str


@dataclass(frozen=True)
class KubeletConfig:
    """The kubelet's configuration file, JSON.

    Attributes:
        hide: Directories of the clusters, which no pod may see.
        ids: The users and groups of pods.
        environment: Directories of the host that every container sees, read-only, wherever they are.
        packages: Directories and files of further packages, with hidden directories left out.
        variables: The environment variables by which Python finds them.
        refused: Entries of Python's path that containers do not see, and why.
        sources: Sources that are mounted in place of some paths of the environment.
        covered: Directories that are empty in containers, except for the paths above, and volumes.
        seccomp: The filter of pods' system calls (``LinuxSpec.seccomp``).
        images: How images are obtained: ``stand-in``, ``pull`` or ``auto``; see ``image_manager.py``.
        overlay: Layers of images are mounted; otherwise each container has a copy of its image.
        pid_max: The machine's limit of processes and threads, which a PID namespace does not show.
        image_service: The socket of the image service (``controlplane/image_service.py``).
    """

    server: str
    etcd: str
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
    forkserver: bool
    egress: bool
    metrics: bool = False
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    control_groups: bool = True
    ids: IdRanges = IdRanges()
    environment: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    covered: tuple[str, ...] = ()
    seccomp: str = ""
    images: str = "auto"
    overlay: bool = True
    image_service: str = ""
    pod_pids_limit: int = PIDS_LIMIT
    pid_max: int = 0
    eviction_hard: str = ""
    eviction_pressure_transition_period: float = TRANSITION_SECONDS
    plain: PlainSettings | None = None
    log_limits: LogLimits = LogLimits()

    @property
    def node_directories(self) -> Path:
        """The directory of the nodes' directories, each its node's /var/lib/kubelet."""
        return self.pods.with_name("nodes")

    @property
    def file(self) -> Path:
        return self.control.with_name("kubelet.json")

    @classmethod
    def read(cls, path: Path) -> "KubeletConfig":
        raw = json.loads(path.read_text())
        names = ("pki", "socket", "pods", "tmpfs", "volumes", "control", "node_states")
        places = {name: Path(raw[name]) for name in names}
        nodes = tuple(
            NodeSettings(**node | {"gpu_devices": tuple(node["gpu_devices"])}) for node in raw["nodes"]
        )
        plain = PlainSettings(**raw["plain"]) if raw.get("plain") else None
        log_limits = LogLimits(**raw["log_limits"])
        return cls(
            **raw
            | places
            | {"nodes": nodes, "plain": plain, "log_limits": log_limits, "ids": IdRanges(**raw["ids"])}
            | {name: tuple(raw[name]) for name in ("hide", "environment", "packages", "covered")}
        )
