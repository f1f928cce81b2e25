"""Faults of virtual nodes: each can be stopped and started, isolated from the network and reconnected.

The states are kept in a file of the cluster. A stopped node runs nothing. An isolated one keeps its pods
running: they are moved to a bridge of their own, and the node's requests to the API fail.
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
    """One node: its resources, its access to the API, and its heartbeat."""

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
        return self.state == RUNNING

    @property
    def prefix(self) -> str:
        """The common prefix of its pods' addresses."""
        return f"10.244.{self.settings.index + 1}."

    def set_runtime(self, runtime: Runtime) -> None:
        """Share the kubelet's parts with its pods, with the node's own access to the API."""
        self.runtime = replace(runtime, api=self.api, events=EventRecorder(self.api))
        start_task(self.runtime.events.run(), name=f"events {self.name}")

    async def register(self) -> None:
        """Register it, once the API server responds."""
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
        work = keep_alive(self.api, self.settings, version=self._version, seen=self.runtime.nodes)
        self._beating = start_task(work, name=f"heartbeat {self.name}")

    def disconnect(self, state: str) -> None:
        self.state, self.api.silent = state, True
        if self._beating:
            self._beating.cancel()

    def connect(self) -> None:
        self.state, self.api.silent = RUNNING, False

    def plug(self) -> dict[str, str]:
        """The node's place in the network, for the runtime."""
        bridge = f"isolated{self.settings.index}"
        return {"address": self.settings.address, "prefix": self.prefix, "bridge": bridge}


class Tenants(Protocol):
    """What the kubelet does with a node's pods."""

    async def lose(self, node: VirtualNode) -> None:
        """End every process of the node's pods at once, and report nothing."""

    async def reconcile(self, node: VirtualNode) -> None:
        """Bring the node's pods to what the API says by now."""


class NodeStates:
    """The state of each node, in a file; a node that is not in it is running."""

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
    """Runs ``stop``, ``start``, ``isolate`` and ``reconnect``, one at a time."""

    def __init__(
        self, nodes: Mapping[str, VirtualNode], *, states: NodeStates, client: RuntimeClient, tenants: Tenants
    ) -> None:
        self._nodes, self._states, self._client, self._tenants = nodes, states, client, tenants
        self._lock = asyncio.Lock()

    async def restore(self) -> None:
        """Finish what a previous kubelet may have begun."""
        for node in self._nodes.values():
            if not node.is_reachable:
                await self._client.call("unplug", **node.plug())
            if node.state == STOPPED:
                await self._tenants.lose(node)

    async def switch(self, verb: str, name: str) -> dict[str, str]:
        """Run a verb and return the node's name and state; repeating one is safe.

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
