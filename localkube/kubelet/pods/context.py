"""The kubelet's parts that all pods share, and the paths of a pod's files."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images.image_manager import ImageManager
from localkube.kubelet.logs.container_log import segments
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod_ids import PodIds
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.probes.handlers import Handlers
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.pressure import Pressure
from localkube.kubelet.volumes.host_path import HiddenDirectories
from localkube.kubelet.volumes.object_cache import ObjectCache
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.network.addresses import Addresses, ClusterNetwork, NamespaceAddresses
from localkube.network.fair_shares import PodNamespaces
from localkube.network.policy_enforcer import PolicyEnforcer
from localkube.runtime.client import RuntimeClient
from localkube.runtime.trees import remove_tree

log = logging.getLogger(__name__)

REPORTS_AT_ONCE = 6
# Trees of files that are removed at the same time: each takes turns with this process's other work.
REMOVALS_AT_ONCE = 2
MESSAGE_BYTES, FALLBACK_BYTES = 4096, 2048
FALLBACK_LINES = 80


@dataclass
class Runtime:
    """The parts that every pod's worker uses.

    Attributes:
        hide: Directories of the host that are covered in every container, and in its volumes.
        ids: The users and groups of pods.
        environment: Directories of the host that every container sees, read-only.
        sources: What is shown in the place of some of these.
        covered: Directories of the host that are empty in containers, but for the former and volumes.
        seccomp: The filter of pods' system calls (``LinuxSpec.seccomp``).
        pods: The directory of the pods' files.
        node_directories: A directory for each node, its /var/lib/kubelet.
        tmpfs: The same in memory, for what comes from the API. No pod may write there: it is all pods'.
        namespaces: Those of the pods' addresses, for what all of them share.
        plain: In plain mode.
        forkserver: Let the forkserver start the containers that it can.
    """

    api: Api
    client: RuntimeClient
    objects: ObjectCache
    images: ImageManager
    volumes: VolumeManager
    logs: LogFiles
    executions: Executions
    events: EventRecorder
    hide: HiddenDirectories
    pods: Path
    tmpfs: Path
    services: Informer
    nodes: Informer
    node_directories: Path = Path("/nonexistent")
    network: ClusterNetwork = field(default_factory=ClusterNetwork)
    addresses: Addresses = field(default_factory=NamespaceAddresses)
    ids: PodIds = field(default_factory=PodIds)
    environment: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    covered: tuple[str, ...] = ()
    seccomp: str = ""
    plain: PlainPods | None = None
    forkserver: bool = False
    reporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPORTS_AT_ONCE))
    starting: StartingPods = field(default_factory=StartingPods)
    removing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REMOVALS_AT_ONCE))
    limits: Limits = field(default_factory=Limits)
    pressure: Pressure = field(default_factory=Pressure)
    policies: PolicyEnforcer | None = None
    namespaces: PodNamespaces = field(default_factory=PodNamespaces)
    version: str = ""

    @cached_property
    def handlers(self) -> Handlers:
        return Handlers(self.addresses, execute=self.executions.run, version=self.version)

    def shared_with_node(self, pod: Mapping[str, Any]) -> list[str]:
        """List the namespaces that a pod shares with its node: ``net``, ``ipc``, ``pid``.

        Processes only where its user cannot end the cluster's own.
        """
        fields = {"net": "hostNetwork", "ipc": "hostIPC", "pid": "hostPID"}
        shared = [name for name, field in fields.items() if pod["spec"].get(field)]
        has_own_user = self.ids.of(pod["metadata"]["uid"]).size > 1
        return [name for name in shared if name != "pid" or has_own_user]

    def tmpfs_directory(self, uid: str) -> Path:
        return self.tmpfs / uid

    def network_files(self, uid: str) -> Path:
        """The directory of the pod's hosts, hostname and resolv.conf, which its containers may write."""
        return self.pods / uid / "network"

    def directories(self, uid: str) -> tuple[Path, Path]:
        """All directories that a pod may have left."""
        return self.pods / uid, self.tmpfs / uid

    async def remove_files(self, uid: str) -> None:
        """Remove all that a pod has left; what cannot be removed is named in the log, and stays."""
        await self.starting.give_way()
        try:
            await self.volumes.remove(uid)
        except OSError as error:
            log.warning("a volume of pod %s is left: %s", uid, error)
        for directory in self.directories(uid):
            try:
                await self._remove(directory)
            except OSError as error:
                log.warning("files of pod %s are left: %s", uid, error)
                return
        self.ids.release(uid)
        self.images.forget(uid)

    async def _remove(self, directory: Path) -> None:
        async with self.removing:
            await asyncio.to_thread(remove_tree, directory)

    async def remove_written(self, uid: str) -> None:
        """Remove what a pod that has ended has stored, but for its logs: the disk is short."""
        try:
            await self.volumes.remove(uid)
            await self._remove(self.pods / uid / "writable")
        except OSError as error:
            log.warning("files of pod %s are left: %s", uid, error)

    def log_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "logs" / container / f"{restart}.log"

    def newest_run_logged(self, uid: str, container: str) -> int | None:
        """The number of a container's newest run that has a log: it has run, whatever was reported."""
        return max(
            (int(path.stem) for path in self.log_path(uid, container, 0).parent.glob("*.log")), default=None
        )

    def writable_layer(self, uid: str, container: str, restart: int) -> Path:
        """The directory with what one run of a container writes outside of volumes."""
        return self.pods / uid / "writable" / f"{container}.{restart}"

    async def remove_writable_layer(self, uid: str, container: str, restart: int) -> None:
        """Remove it once the run has ended; what cannot be removed goes with the pod."""
        await self.starting.give_way()
        try:
            await self._remove(self.writable_layer(uid, container, restart))
        except OSError as error:
            log.warning("files of container %s of pod %s are left: %s", container, uid, error)

    async def remove_former_runs(self, uid: str, container: str, restart: int) -> None:
        """Remove what earlier runs have left: one that ended with its node was not cleared away."""
        for place in ("writable", "termination"):
            for path in (self.pods / uid / place).glob(f"{container}.*"):
                number = int(path.suffix.removeprefix("."))
                if number < restart and place == "writable":
                    await self.remove_writable_layer(uid, container, number)
                elif number < restart:
                    path.unlink(missing_ok=True)

    def termination_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "termination" / f"{container}.{restart}"

    def termination_message(self, uid: str, container: Mapping[str, Any], restart: int, code: int) -> str:
        """Read a container's termination message, or the end of its log if its policy says so."""
        path = self.termination_path(uid, container["name"], restart)
        text = _tail(path, MESSAGE_BYTES)
        fallback = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not text and code and fallback:
            text = _last_output(self.log_path(uid, container["name"], restart))
        return text


def _tail(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_output(path: Path) -> str:
    """Read the last 2048 bytes and 80 lines of a container's output, without the log's own columns."""
    entries = b""
    for name in reversed(segments(path)):
        if len(entries) < 4 * FALLBACK_BYTES:
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * FALLBACK_BYTES))
                entries = file.read() + entries
    fields = [entry.split(b" ", 3) for entry in entries.split(b"\n") if entry.count(b" ") >= 3]
    # Of a line that was written in parts, only the last entry ends it.
    output = b"".join(content + (b"" if tag == b"P" else b"\n") for _, _, tag, content in fields)
    last = b"".join(output.splitlines(keepends=True)[-FALLBACK_LINES:])
    return last[-FALLBACK_BYTES:].decode(errors="replace")
