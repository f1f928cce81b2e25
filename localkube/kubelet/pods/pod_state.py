"""The state of one pod, which its worker shares with the workers of its containers and with its resize.

The pod's lifecycle is in `pod`, a container's in `container_worker`; both change what is here.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from localkube.api_path import api_path
from localkube.kubelet.containers.process import Process
from localkube.kubelet.heartbeat import work_of
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.volumes.volume_manager import MountedVolume
from localkube.tasks import start_task, wait_for_first


class ResizedContainer(Protocol):
    """What a resize needs of a container's worker."""

    def resize(self) -> bool:
        """Apply its resources; True once the container has them."""
        ...


class PodState(ABC):
    """A pod as its parts see it.

    Attributes:
        pod: The v1.Pod, with the resources that the node has allocated.
        records: The states of its containers, by name.
        processes: The containers that run, by name.
        early: Ends that overtook the answer to the order that started their process, by its identity.
        stopping: Set while the pod is being ended.
        restarting: Set while its containers end because all of them start again.
        containers: Their workers, by name.
        replaced: Runs that have ended in order to be started again; reported as they were until the next
            one's state is known.
        clearing: How many ended containers' files are being removed.
        quiet: Set while no container runs, and what those wrote that did is gone.
    """

    def __init__(self, pod: Mapping[str, Any], *, node: VirtualNode, runtime: ContainerRuntime) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.pod: Mapping[str, Any] = pod
        self.node, self.pool, self.runtime = node, node.pool, runtime
        self.address: str | None = None
        self.volumes: dict[str, MountedVolume] = {}
        self.records: dict[str, ContainerRecord] = {}
        self.replaced: dict[str, ContainerRecord] = {}
        self.processes: dict[str, Process] = {}
        self.containers: Mapping[str, ResizedContainer] = {}
        self.early: dict[str, dict[str, Any]] = {}
        self.stopping, self.restarting, self.quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.quiet.set()
        self.clearing = 0
        self._background: set[asyncio.Task[None]] = set()
        self._deleting: float | None = None

    @abstractmethod
    def report(self, *, ended: str | None = None) -> None:
        """Report its status soon."""

    @abstractmethod
    def restart_all(self) -> None:
        """End all containers but ephemeral ones, without grace, so that all of them start again."""

    @abstractmethod
    def sync_containers(self) -> None:
        """Hand on the specification, with the resources that the node has allocated by now."""

    @abstractmethod
    def actuate(self) -> None:
        """Continue a resize: a container has ended, or started."""

    @property
    def grace(self) -> float:
        """The termination grace period: that of the deletion, once there is one."""
        if self._deleting is not None:
            return self._deleting
        return self.pod["spec"].get("terminationGracePeriodSeconds", 30)

    def event(self, reason: str, message: str, *, warning: bool = False, container: str = "") -> None:
        self.node.events.record(self.pod, reason, message, warning=warning, field=container)

    async def pause(self, seconds: float) -> bool:
        """Sleep; True when the pod is being stopped."""
        await wait_for_first(self.stopping.wait(), seconds=seconds)
        return self.stopping.is_set()

    async def kill(self, process: Process, number: int) -> None:
        await self.runtime.client.call("kill", id=process.identity, signal=int(number))

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        with work_of(self.pod):
            task = start_task(work, name=f"background {self._path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    @property
    def _path(self) -> str:
        meta = self.pod["metadata"]
        return api_path("v1/pods", namespace=meta["namespace"], name=meta["name"])
