"""The kubelet's parts that all pods share."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images.image_manager import ImageManager
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.pods.pod_ids import PodIds
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.probes.handlers import Handlers
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.pressure import Pressure
from localkube.kubelet.volumes.host_path import HiddenDirectories
from localkube.kubelet.volumes.object_cache import ObjectCache
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.network.addresses import Addresses, ClusterNetwork
from localkube.network.fair_shares import PodNamespaces
from localkube.network.policy_enforcer import PolicyEnforcer
from localkube.runtime.client import RuntimeClient

REPORTS_AT_ONCE = 6


@dataclass(frozen=True)
class HostView:
    """What containers see of this machine.

    Attributes:
        hide: Directories that are covered in every container, and in its volumes.
        environment: Directories that every container sees, read-only.
        sources: What is shown in the place of some of these.
        covered: Directories that are empty in containers, but for the former and volumes.
        seccomp: The filter of pods' system calls (``LinuxSpec.seccomp``).
    """

    hide: HiddenDirectories
    environment: tuple[str, ...]
    sources: Mapping[str, str]
    covered: tuple[str, ...]
    seccomp: str


@dataclass
class Runtime:
    """The parts that every pod's worker uses.

    Attributes:
        ids: The users and groups of pods.
        files: What pods keep on the disk.
        host: What containers see of this machine.
        node_directories: A directory for each node, its /var/lib/kubelet.
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
    files: PodFiles
    host: HostView
    services: Informer
    nodes: Informer
    node_directories: Path
    addresses: Addresses
    ids: PodIds
    plain: PlainPods | None
    forkserver: bool
    starting: StartingPods
    limits: Limits
    pressure: Pressure
    policies: PolicyEnforcer
    namespaces: PodNamespaces
    version: str
    network: ClusterNetwork = ClusterNetwork()
    reporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPORTS_AT_ONCE))

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
