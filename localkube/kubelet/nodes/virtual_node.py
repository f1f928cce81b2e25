"""Running virtual nodes: each registers itself, renews its lease, and may be powered off or disconnected."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer, NodeApi
from localkube.errors import ApiError
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.nodes.node import NodePool, keep_alive, register_node
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.pressure import Pressure
from localkube.paths import read_json, write_private
from localkube.tasks import start_task

log = logging.getLogger(__name__)

RUNNING, STOPPED, ISOLATED = "running", "stopped", "isolated"
RETRY_SECONDS, REGISTER_SECONDS, MAX_REGISTER_SECONDS = 0.05, 5, 60
PASSING = (0, 403, 429, 500, 503)


class VirtualNode:
    """One node: its resources, its heartbeat, and its own access to the API, for itself and its pods.

    Args:
        state: Running, stopped or isolated.
        admin: The client for fields that no node may write itself.
        nodes: The informer of nodes.
        wait_until_idle: Waits until no pod is starting, at most two seconds.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        state: str,
        api: NodeApi,
        admin: Api,
        nodes: Informer,
        directory: Path,
        version: str,
        pressure: Pressure,
        wait_until_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self.settings, self.state = settings, state
        self.pool = NodePool(settings, directory=directory)
        self.api, self._admin = api, admin
        self.api.silent = state != RUNNING
        self.events = EventRecorder(self.api, wait_until_idle=wait_until_idle)
        self._nodes, self._version, self._pressure = nodes, version, pressure
        self._heartbeat: asyncio.Task[None] | None = None
        start_task(self.events.run(), name=f"events {self.name}", critical=True)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def object(self) -> Mapping[str, Any] | None:
        """The node's v1.Node; None until the informer has it."""
        return self._nodes.store.get(("", self.name))

    @property
    def is_reachable(self) -> bool:
        return self.state == RUNNING

    def has_address(self, address: str) -> bool:
        """Check whether an address is the node's, or that of a pod on it."""
        return address == self.settings.address or address.startswith(self.settings.pods)

    async def register(self) -> None:
        """Register the node, once the API server responds."""
        timeout = REGISTER_SECONDS
        while True:
            try:
                # A starting API server may accept a request and lose it; a busy one takes longer to answer.
                async with asyncio.timeout(timeout):
                    await register_node(
                        self.api,
                        self.settings,
                        admin=self._admin,
                        version=self._version,
                        pressure=self._pressure.conditions,
                    )
                return
            except TimeoutError:
                log.warning("the API server has not answered the registration of %s; again", self.name)
                timeout = min(2 * timeout, MAX_REGISTER_SECONDS)
            except ApiError as error:
                if error.status not in PASSING:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def start_heartbeat(self) -> None:
        work = keep_alive(
            self.api,
            self.pool,
            version=self._version,
            nodes=self._nodes,
            pressure=lambda: self._pressure.conditions,
            changed=lambda reason: self.event(reason, f"Node {self.name} status is now: {reason}"),
        )
        self._heartbeat = start_task(work, name=f"heartbeat {self.name}", critical=True)

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Queue an Event on the node; like a kubelet's, it has the node's name in place of a uid."""
        node = {"kind": "Node", "metadata": {"name": self.name, "uid": self.name}}
        self.events.record(node, reason, message, warning=warning)

    def disconnect(self, state: str) -> None:
        self.state, self.api.silent = state, True
        if self._heartbeat:
            self._heartbeat.cancel()

    def connect(self) -> None:
        self.state, self.api.silent = RUNNING, False

    def network_place(self) -> dict[str, str]:
        """Describe the node's place in the network, for the runtime."""
        bridge = f"isolated{self.settings.index}"
        return {"address": self.settings.address, "prefix": self.settings.pods, "bridge": bridge}


class NodeStates:
    """The state of each node, in a file of the cluster; a node that is not in it is running."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._states: dict[str, str] = read_json(path)

    def __getitem__(self, node: str) -> str:
        return self._states.get(node, RUNNING)

    def __setitem__(self, node: str, state: str) -> None:
        states = {name: known for name, known in self._states.items() if name != node}
        if state != RUNNING:
            states[node] = state
        write_private(self.path, json.dumps(states))
        self._states = states
