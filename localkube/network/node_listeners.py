"""Listeners on the addresses of nodes, each of which has a network namespace of its own.

For NodePorts and host ports. The runtime makes the sockets, so a listener starts shortly after its request.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from localkube.network.addresses import Addresses
from localkube.network.fair_shares import RelayLimits
from localkube.network.relay import LISTENERS, Backend, Choose, Listener, UdpListener, bound_to
from localkube.runtime.client import RuntimeCallError, RuntimeClient, RuntimeExited
from localkube.tasks import start_task

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class NodePlace:
    """A node's place in the network: its name, its address, the prefix of its pods' addresses, its zone."""

    name: str
    address: str
    pods: str
    zone: str = ""

    def has(self, address: str) -> bool:
        """Check whether an address is the node's or that of a pod on it."""
        return address == self.address or address.startswith(self.pods)


@dataclass(frozen=True)
class Front:
    """An address at which connections are accepted; ``node`` is its node's address, if it is a node's."""

    ip: str
    port: int
    protocol: str = "TCP"
    node: str = ""


class NodeSockets:
    """Binds sockets in the networks of nodes; in plain mode these are the machine's own."""

    def __init__(self, client: RuntimeClient, addresses: Addresses) -> None:
        self._client, self._addresses = client, addresses

    async def bind(self, node: str, host: str, port: int, protocol: str) -> socket.socket:
        """Bind a socket to an address of a node's, which may be its loopback or ``0.0.0.0``."""
        try:
            _, (descriptor,) = await self._client.call("socket", node=node, udp=protocol == "UDP")
        except (RuntimeCallError, RuntimeExited) as error:
            raise OSError(str(error)) from error
        return bound_to(socket.socket(fileno=descriptor), self._addresses.reach(host, port))

    async def netfilter(self, node: str) -> socket.socket:
        """Open a netlink socket for the rules of a node's network, by the node's address."""
        try:
            _, (descriptor,) = await self._client.call("socket", node=node, netfilter=True)
        except (RuntimeCallError, RuntimeExited) as error:
            raise OSError(str(error)) from error
        return socket.socket(fileno=descriptor)


class NodeListeners:
    """Listens on fronts of nodes until they are stopped, and tries again where that fails."""

    def __init__(self, sockets: NodeSockets, limits: RelayLimits) -> None:
        self._sockets, self._limits = sockets, limits
        self._choosers: dict[Front, Choose] = {}
        self._listeners: dict[Front, Listener] = {}
        self._tasks: dict[Front, asyncio.Task[None]] = {}

    def serve(self, front: Front, choose: Choose, *, namespace: str, about: str) -> None:
        """Listen on ``front`` from now on; idempotent.

        Args:
            choose: See ``relay.Listener``.
            namespace: The namespace that the listener is charged to.
            about: The Service or pod that it is for, for the log.
        """
        if front not in self._choosers:
            self._choosers[front] = choose
            self._tasks[front] = start_task(self._open(front, namespace, about), name=f"listen for {about}")

    def stop(self, front: Front) -> None:
        self._choosers.pop(front, None)
        if task := self._tasks.pop(front, None):
            task.cancel()
        if listener := self._listeners.pop(front, None):
            listener.close()

    def forget(self, front: Front, backends: Iterable[Backend]) -> None:
        """End the UDP flows to any other backends."""
        listener = self._listeners.get(front)
        if isinstance(listener, UdpListener):
            listener.forget(backends)

    def close(self) -> None:
        for front in list(self._choosers):
            self.stop(front)

    async def _open(self, front: Front, namespace: str, about: str) -> None:
        level = logging.WARNING
        while True:
            try:
                self._listeners[front] = await self._listen(front, namespace)
                return
            except OSError as error:
                log.log(level, "%s: cannot listen on %s:%d: %s", about, front.ip, front.port, error)
                level = logging.DEBUG
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, front: Front, namespace: str) -> Listener:
        listeners = self._limits.listeners
        holding = self._limits.acquire_listener(namespace)
        try:
            bound = await self._sockets.bind(front.node, front.ip, front.port, front.protocol)
        except BaseException:
            listeners.release(holding)
            raise
        listener = LISTENERS[front.protocol]
        return listener(bound, self._choosers[front], self._limits.flows, lambda: listeners.release(holding))
