"""The kubelet's parts that all pods share, and the paths of a pod's files."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images.image_programs import Programs
from localkube.kubelet.logs.container_log import segments
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.probes.handlers import Handlers
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.volumes.object_cache import ObjectCache
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.network.addresses import Addresses, ClusterNetwork, NamespaceAddresses
from localkube.runtime.client import RuntimeClient

# Writable directories of every container.
SCRATCH = ("/tmp", "/run", "/var/tmp")
REPORTS_AT_ONCE = 6
MESSAGE_BYTES, FALLBACK_BYTES = 4096, 2048


@dataclass
class Runtime:
    """The parts that every pod's worker uses.

    Attributes:
        hide: Directories of the host that are covered in every container.
        pods: The directory of the pods' files.
        tmpfs: The same in memory, for small files: a disk would take longer than the pod's start.
        plain: In plain mode.
        forkserver: Let the forkserver start the containers that it can.
    """

    api: Api
    client: RuntimeClient
    objects: ObjectCache
    volumes: VolumeManager
    logs: LogFiles
    executions: Executions
    events: EventRecorder
    hide: tuple[str, ...]
    pods: Path
    tmpfs: Path
    services: Informer
    nodes: Informer
    network: ClusterNetwork = field(default_factory=ClusterNetwork)
    addresses: Addresses = field(default_factory=NamespaceAddresses)
    programs: Programs = field(default_factory=Programs)
    plain: PlainPods | None = None
    forkserver: bool = False
    reporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPORTS_AT_ONCE))
    limits: Limits = field(default_factory=Limits)
    version: str = ""

    @cached_property
    def handlers(self) -> Handlers:
        return Handlers(self.addresses, execute=self.executions.run, version=self.version)

    def tmpfs_directory(self, uid: str) -> Path:
        return self.tmpfs / uid

    def directories(self, uid: str) -> tuple[Path, Path]:
        """All directories that a pod may have left."""
        return self.pods / uid, self.tmpfs / uid

    def log_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "logs" / container / f"{restart}.log"

    def termination_path(self, uid: str, container: str, restart: int) -> Path:
        return self.tmpfs / uid / "termination" / f"{container}.{restart}"

    def termination_message(self, uid: str, container: Mapping[str, Any], restart: int, code: int) -> str:
        """Read a container's termination message, or the end of its log if its policy says so."""
        path = self.termination_path(uid, container["name"], restart)
        text = _head(path, MESSAGE_BYTES)
        fallback = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not text and code and fallback:
            text = _last_output(self.log_path(uid, container["name"], restart))
        return text


def _head(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_output(path: Path) -> str:
    """Read the last 2048 bytes of a container's output, without the log's own columns."""
    entries = b""
    for name in reversed(segments(path)):
        if len(entries) < 4 * FALLBACK_BYTES:
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * FALLBACK_BYTES))
                entries = file.read() + entries
    texts = [line.split(b" ", 3)[3] for line in entries.split(b"\n") if line.count(b" ") >= 3]
    return b"\n".join(texts)[-FALLBACK_BYTES:].decode(errors="replace")
