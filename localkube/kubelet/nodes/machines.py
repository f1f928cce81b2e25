"""The virtual nodes as machines: each can lose its power or its network, and gets it back.

What each is set to is kept in a file of the cluster, so that it outlives this process. A stopped node runs
nothing and says nothing. One that is cut off goes on with what it runs, hears nothing, and is not heard:
its pods are on a bridge of their own, and its part of the kubelet gets no answer from the API.

What happens to the pods is the kubelet's business (`Tenants`). Who may ask is in ``control.py``.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from localkube.api_client import Api, ApiError, NodeApi
from localkube.errors import LocalClusterError
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.nodes.node import NodePool, NodeSettings, keep_alive, register_node
from localkube.kubelet.pods.context import Runtime
from localkube.paths import write_private
from localkube.runtime.client import RuntimeCallError, RuntimeClient
from localkube.tasks import start_task

log = logging.getLogger(__name__)

RUNNING, STOPPED, ISOLATED = "running", "stopped", "isolated"
RETRY_SECONDS, REGISTER_SECONDS, MOST_REGISTER_SECONDS = 0.05, 5, 60
PASSING = (0, 403, 429, 500, 503)


class VirtualNode:
    """One node: what it hands out, its way to the API, and whether it beats."""

    def __init__(self, settings: NodeSettings, *, api: Api, version: str, state: str) -> None:
        self.settings = settings
        self.pool = NodePool(settings)
        self.state = state
        self.runtime: Runtime | None = None
        self.api = NodeApi(api)
        self.api.silent = state != RUNNING
        self._version = version
        self._beating: asyncio.Task | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_reachable(self) -> bool:
        """Whether it takes part in the cluster."""
        return self.state == RUNNING

    @property
    def prefix(self) -> str:
        """How the addresses of its pods begin."""
        return f"10.244.{self.settings.index + 1}."

    def set_runtime(self, runtime: Runtime) -> None:
        """Give its pods the kubelet's parts, with its own way to the API."""
        self.runtime = replace(runtime, api=self.api, events=EventRecorder(self.api))
        start_task(self.runtime.events.run(), name=f"events {self.name}")

    async def register(self) -> None:
        """Register it as soon as the API server answers."""
        patience = REGISTER_SECONDS
        while True:
            try:
                # A young API server may take a request and forget it; a busy one takes longer to answer.
                async with asyncio.timeout(patience):
                    await register_node(self.api, self.settings, version=self._version)
                return
            except TimeoutError:
                log.warning("the API server has not answered the registration of %s; again", self.name)
                patience = min(2 * patience, MOST_REGISTER_SECONDS)
            except ApiError as error:
                if error.status not in PASSING:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def start_heartbeat(self) -> None:
        """Begin to show life."""
        work = keep_alive(self.api, self.settings, version=self._version, seen=self.runtime.nodes)
        self._beating = start_task(work, name=f"heartbeat {self.name}")

    def disconnect(self, state: str) -> None:
        self.state, self.api.silent = state, True
        if self._beating:
            self._beating.cancel()

    def connect(self) -> None:
        self.state, self.api.silent = RUNNING, False

    def plug(self) -> dict[str, str]:
        """Return what the runtime must know of its place in the network."""
        bridge = f"isolated{self.settings.index}"
        return {"address": self.settings.address, "prefix": self.prefix, "bridge": bridge}


class Tenants(Protocol):
    """What the kubelet does with a node's pods."""

    async def lose(self, node: VirtualNode) -> None:
        """End every process of the node's pods at once, and report nothing."""

    async def reconcile(self, node: VirtualNode) -> None:
        """Bring the node's pods to what the API says by now."""


class NodeStates:
    """What each node is set to, in a file; one that is not in there runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._states: dict[str, str] = json.loads(path.read_text())
        except FileNotFoundError:
            self._states = {}

    def __getitem__(self, node: str) -> str:
        return self._states.get(node, RUNNING)

    def set(self, node: str, state: str) -> None:
        self._states = {name: kept for name, kept in self._states.items() if name != node}
        if state != RUNNING:
            self._states[node] = state
        write_private(self._path, json.dumps(self._states))


class NodeFaults:
    """Carries out ``stop``, ``start``, ``isolate`` and ``reconnect``, one after the other.

    Args:
        nodes: By name.
        states: What was set before.
        client: To the runtime, which has the network.
        tenants: Whoever looks after the pods.
    """

    def __init__(
        self, nodes: Mapping[str, VirtualNode], *, states: NodeStates, client: RuntimeClient, tenants: Tenants
    ) -> None:
        self._nodes, self._states, self._client, self._tenants = nodes, states, client, tenants
        self._lock = asyncio.Lock()

    async def restore(self) -> None:
        """Carry out again what a previous kubelet may not have finished."""
        for node in self._nodes.values():
            if not node.is_reachable:
                await self._client.call("unplug", **node.plug())
            if node.state == STOPPED:
                await self._tenants.lose(node)

    async def switch(self, verb: str, name: str) -> dict[str, str]:
        """Carry out a verb and return the node's name and state; one that is so already is fine.

        Raises:
            LocalClusterError: There is no such node, or it cannot be done here, or from where it is.
        """
        node = self._nodes.get(name)
        if node is None:
            raise LocalClusterError(
                "there is no such node", about=name, fix=f"those that there are: {', '.join(self._nodes)}"
            )
        work = {
            "stop": self._stop,
            "start": self._start,
            "isolate": self._isolate,
            "reconnect": self._reconnect,
        }[verb]
        async with self._lock:
            try:
                await work(node)
            except RuntimeCallError as error:
                raise LocalClusterError(
                    error.message,
                    about=f"{verb} {name}",
                    fix="switch it off in its stead, or use a machine that allows namespaces: kit doctor",
                ) from error
        return {"node": name, "state": node.state}

    async def _stop(self, node: VirtualNode) -> None:
        node.disconnect(STOPPED)
        self._states.set(node.name, STOPPED)
        await self._client.call("unplug", **node.plug())
        await self._tenants.lose(node)

    async def _start(self, node: VirtualNode) -> None:
        if node.state == ISOLATED:
            raise LocalClusterError(
                "the node runs; it is isolated from the network", about=node.name, fix="reconnect it"
            )
        await self._return(node)

    async def _isolate(self, node: VirtualNode) -> None:
        if node.state == STOPPED:
            raise LocalClusterError("the node is switched off", about=node.name, fix="start it first")
        if node.state == RUNNING:
            await self._client.call("unplug", isolate=True, **node.plug())
            node.disconnect(ISOLATED)
            self._states.set(node.name, ISOLATED)

    async def _reconnect(self, node: VirtualNode) -> None:
        if node.state == STOPPED:
            raise LocalClusterError("the node is switched off", about=node.name, fix="start it")
        await self._return(node)

    async def _return(self, node: VirtualNode) -> None:
        if node.is_reachable:
            return
        await self._client.call("plug", **node.plug())
        node.connect()
        self._states.set(node.name, RUNNING)
        await node.register()
        node.start_heartbeat()
        await self._tenants.reconcile(node)
