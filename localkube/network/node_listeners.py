"""Listeners for Services and host ports: in the cluster's network, and on the addresses of nodes.

Each node has a network namespace of its own. The runtime makes the sockets there, so that a listener starts
shortly after its request.
"""

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localkube.network.addresses import Addresses
from localkube.network.fair_shares import RelayLimits
from localkube.network.relay import LISTENERS, Backend, Choose, Listener, UdpListener, bind, bound_to
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


class Listeners:
    """Listens on fronts until they are stopped, and tries again where that fails.

    Args:
        sockets: Makes the sockets of fronts on nodes; None if there are none.
        place: Maps the (ip, port) of any other front to the address to listen on.
    """

    def __init__(
        self,
        sockets: NodeSockets | None,
        limits: RelayLimits,
        place: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
    ) -> None:
        self._sockets, self._limits, self._place = sockets, limits, place
        # By front: how a backend is chosen, and the namespace and the object that it is for.
        self._requests: dict[Front, tuple[Choose, str, str]] = {}
        self._listeners: dict[Front, Listener] = {}
        self._tasks: dict[Front, asyncio.Task[None]] = {}
        self._failed: set[Front] = set()
        self._retry: asyncio.TimerHandle | None = None  # one, not one for each front

    def address(self, front: Front) -> Backend | None:
        """Find the address that listens for a front; None while there is none."""
        listener = self._listeners.get(front)
        return listener.address if listener else None

    def serve(self, front: Front, choose: Choose, *, namespace: str, about: str) -> None:
        """Listen on ``front`` from now on; idempotent.

        Args:
            choose: See ``relay.Listener``.
            namespace: The namespace that the listener is charged to.
            about: The Service or pod that it is for, for the log.
        """
        if front not in self._requests:
            self._requests[front] = choose, namespace, about
            self._open(front)

    def stop(self, front: Front) -> None:
        self._requests.pop(front, None)
        self._failed.discard(front)
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
        for front in list(self._requests):
            self.stop(front)
        if self._retry:
            self._retry.cancel()

    def _open(self, front: Front) -> None:
        if front.node:
            self._tasks[front] = start_task(self._open_on_node(front), name=f"listen on {front}")
            return
        try:
            self._listen(front, bind(front.protocol, self._place(front.ip, front.port)))
        except OSError as error:
            self._retry_later(front, error)

    async def _open_on_node(self, front: Front) -> None:
        assert self._sockets is not None
        try:
            self._listen(front, await self._sockets.bind(front.node, front.ip, front.port, front.protocol))
        except OSError as error:
            self._retry_later(front, error)

    def _listen(self, front: Front, bound: socket.socket) -> None:
        choose, namespace, _ = self._requests[front]
        try:
            holding = self._limits.acquire_listener(namespace)
        except OSError:
            bound.close()
            raise
        release = functools.partial(self._limits.listeners.release, holding)
        self._listeners[front] = LISTENERS[front.protocol](bound, choose, self._limits.flows, release)
        self._failed.discard(front)

    def _retry_later(self, front: Front, error: OSError) -> None:
        level = logging.DEBUG if front in self._failed else logging.WARNING
        about = self._requests[front][2]
        log.log(level, "%s: cannot listen on %s:%d: %s", about, front.ip, front.port, error.strerror or error)
        self._failed.add(front)
        if not self._retry:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._reopen)

    def _reopen(self) -> None:
        self._retry = None
        for front in list(self._failed):
            self._open(front)
