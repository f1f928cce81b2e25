"""What the workers of a pod and of its containers share: one record, its events, and waits for it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec

from localkube.api_path import api_path
from localkube.kubelet.containers.process import Process
from localkube.kubelet.heartbeat import work_of
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.pods.pod.actions import Action, Change
from localkube.kubelet.pods.pod.record import PodRecord
from localkube.tasks import start_task

Arguments = ParamSpec("Arguments")
Condition = Callable[[PodRecord], bool]


class PodDriver(ABC):
    """Holds the record of a pod.

    The base of `PodWorker`: it imports `ContainerWorker` and `StatusManager`, which cannot import it.

    Attributes:
        record: The state of the pod, which only ``apply`` replaces.
    """

    def __init__(self, record: PodRecord, *, node: VirtualNode, runtime: ContainerRuntime) -> None:
        self.record, self.node, self.runtime = record, node, runtime
        self._waiters: set[tuple[Condition, asyncio.Future[None]]] = set()
        self._background: set[asyncio.Task[None]] = set()

    def apply(
        self,
        event: Callable[Concatenate[PodRecord, Arguments], Change],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Change the record by an event of ``events.py``, and perform the resulting actions."""
        self.record, actions = event(self.record, *args, **kwargs)
        for holds, future in self._waiters:
            if not future.done() and holds(self.record):
                future.set_result(None)
        for action in actions:
            self.perform(action)

    @abstractmethod
    def perform(self, action: Action) -> None:
        """Perform an action, or start it in the background."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Compute the current PodStatus."""

    @abstractmethod
    def apply_newer(self, pod: Mapping[str, Any]) -> None:
        """Apply a newer object, from the watch or from the answer to a status report."""

    async def until(self, holds: Condition, *, seconds: float | None = None) -> None:
        """Wait until a condition holds for the record, at most ``seconds``."""
        if holds(self.record):
            return
        waiter = holds, asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter[1]], timeout=seconds)
        finally:
            self._waiters.discard(waiter)

    async def pause(self, seconds: float) -> None:
        """Sleep until the pod is being stopped."""
        await self.until(lambda record: record.stopping, seconds=seconds)

    async def kill(self, process: Process, number: int) -> None:
        await self.runtime.client.call("kill", id=process.identity, signal=int(number))

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        with work_of(self.record.pod):
            task = start_task(work, name=f"background {self.path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    @property
    def path(self) -> str:
        meta = self.record.pod["metadata"]
        return api_path("v1/pods", namespace=meta["namespace"], name=meta["name"])
