"""Relays of TCP connections and UDP flows, for Services and for the API on the host.

A relay preserves a connection's semantics: the end of data in one direction leaves the other open, a reset is
passed on, and a slow reader slows the writer down.
"""

import asyncio
import errno
import functools
import logging
import socket
import time
from collections.abc import Callable, Iterable

from localkube.network.accepting import PAUSE_SECONDS, RESET, reset
from localkube.network.fair_shares import Holding, Shares
from localkube.tasks import start_task

log = logging.getLogger(__name__)

Backend = tuple[str, int]
Choose = Callable[[str], Iterable[Backend]]
# Decides whether a client, by its address, may connect to a backend by a protocol.
Permits = Callable[[str, Backend, str], bool]

CONNECT_SECONDS = 2.0
BACKLOG = 1024
# Bytes for one connection (maximum and minimum), and for all of a client's.
BUFFER, MIN_BUFFER, BUFFERS = 512 * 1024, 16 * 1024, 16 * 1024 * 1024
FLOW_SECONDS = 60
FLOWS = 4096
LARGEST_DATAGRAM = 65536
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def permit_all(_client: str, _backend: Backend, _protocol: str) -> bool:
    return True


class Listener:
    """A socket on which clients are accepted, each for a backend.

    Args:
        choose: Called with a client's IP address; the backends in the order to try.
        flows: The flows of all listeners, of which a client has its share.
        closed: Called once it is closed.
    """

    def __init__(
        self,
        bound: socket.socket,
        choose: Choose,
        flows: Shares | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._choose, self._shares, self._closed = choose, flows or Shares(FLOWS), closed
        self._flows: dict[Backend, _Flow] = {}  # of UDP, by client
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = bound
        if bound.type == socket.SOCK_STREAM:
            bound.listen(BACKLOG)
        self.address: Backend = bound.getsockname()
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept no new connections; established ones continue."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._closed()

    def _accept(self) -> None:
        """Accept the pending connections, or read a datagram."""
        raise NotImplementedError


class TcpListener(Listener):
    """Accepts connections, and connects each to the first backend that accepts it.

    Connections beyond a client's share are reset.
    """

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("a Service cannot accept more connections: %s", error)
                if error.errno in EXHAUSTED:
                    self._pause()
                return
            holding = self._shares.acquire(address[0])
            if holding is None:
                reset(client)
                continue
            client.setblocking(False)
            start_task(self._connect(client, holding), name="connection to a Service")

    def _pause(self) -> None:
        """Leave connections in the backlog until descriptors may be free again."""
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    async def _connect(self, client: socket.socket, holding: Holding) -> None:
        try:
            halves = await self._halves(client, holding.client)
        except BaseException:
            self._shares.release(holding)
            raise
        if halves is None:
            self._shares.release(holding)
            return
        client_half, backend_half = halves
        open_halves = {client_half, backend_half}

        def gone(half: "_Half", _: asyncio.Future[None]) -> None:
            open_halves.discard(half)
            if not open_halves:
                self._shares.release(holding)

        for half in halves:
            half.gone.add_done_callback(functools.partial(gone, half))
        client_half.join(backend_half)

    async def _halves(self, client: socket.socket, client_ip: str) -> "tuple[_Half, _Half] | None":
        """Connect a client to the first backend that accepts it, or reset it."""
        buffer = max(MIN_BUFFER, min(BUFFER, BUFFERS // self._shares.held(client_ip)))
        for host, port in self._choose(client_ip):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, backend_half = await self._loop.create_connection(lambda: _Half(buffer), host, port)
            except (OSError, TimeoutError) as error:
                log.debug("endpoint %s:%d: %s", host, port, error or type(error).__name__)
                continue
            try:
                _, client_half = await self._loop.connect_accepted_socket(lambda: _Half(buffer), client)
            except OSError:
                backend_half.transport.abort()
                client.close()
                return None
            return client_half, backend_half
        reset(client)
        return None


async def relay(client: socket.socket, backend: socket.socket, *, http: bool = False) -> None:
    """Relay between two connected sockets until both have ended, or with ``http`` only the backend.

    A client that has been idle keeps a connection that an HTTP server has closed until its next request.

    Protocol callbacks take half the time of a coroutine for each direction; asyncio's transports set
    TCP_NODELAY.
    """
    loop = asyncio.get_running_loop()
    try:
        _, client_half = await loop.connect_accepted_socket(_Half, client)
    except OSError:
        client.close()
        backend.close()
        return
    try:
        _, backend_half = await loop.connect_accepted_socket(lambda: _Half(ends_both=http), backend)
    except OSError:
        client_half.transport.abort()
        backend.close()
        return
    client_half.join(backend_half)
    await asyncio.wait([client_half.gone, backend_half.gone])


class _Half(asyncio.Protocol):
    """One connection of a relay, which buffers up to ``buffer`` bytes for a slow reader."""

    def __init__(self, buffer: int = BUFFER, *, ends_both: bool = False) -> None:
        self._buffer, self._ends_both = buffer, ends_both
        self.transport: asyncio.Transport  # from connection_made on, which asyncio calls first
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer: _Half | None = None
        self._ended = False
        self._lost: tuple[Exception | None] | None = None
        self._early = b""  # read before there is a peer: Python 3.11.2 forgets a pause in connection_made

    def join(self, peer: "_Half") -> None:
        self._peer, peer._peer = peer, self
        for half in (self, peer):
            if half._lost:
                half.connection_lost(*half._lost)
                return
        for half in (self, peer):
            if half._early:
                half.data_received(half._early)
        for half in (self, peer):
            if half._ended:
                half.eof_received()
            else:
                half.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=self._buffer)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._early += data
            self.transport.pause_reading()
        else:
            self._peer.transport.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self._peer is None:
            return True
        if self._peer._ended or self._ends_both:
            self.transport.close()
            self._peer.transport.close()
        elif not self._peer.transport.is_closing():
            self._peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self._peer and not self._peer._ended:
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer and not self._peer.transport.is_closing():
            self._peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set_result(None)
        if self._peer is None:
            self._lost = (error,)
        elif error is None:
            self._peer.transport.close()
        elif not self._peer.transport.is_closing():
            self._peer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET
            )
            self._peer.transport.abort()


class UdpListener(Listener):
    """Forwards each client's datagrams to one backend, and its answers back, until a minute of silence.

    The backend is chosen again when it is no longer an endpoint. A client at its limit loses its oldest flow
    for a new one.
    """

    def close(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        for client in list(self._flows):
            self._end(client)
        super().close()

    def forget(self, backends: Iterable[Backend]) -> None:
        """End the flows to any other backends."""
        remaining = set(backends)
        for client in [client for client, flow in self._flows.items() if flow.backend not in remaining]:
            self._end(client)

    def _accept(self) -> None:
        try:
            data, client = self._socket.recvfrom(LARGEST_DATAGRAM)
            flow = self._flows.get(client) or self._begin(client)
            if flow:
                flow.used = time.monotonic()
                flow.socket.send(data)
        except OSError as error:
            log.debug("a datagram to %s:%d is lost: %s", *self.address, error)

    def _begin(self, client: Backend) -> "_Flow | None":
        backend = next(iter(self._choose(client[0])), None)
        if backend is None:
            return None
        holding = self._shares.acquire(client[0], evict=lambda: self._end(client))
        if holding is None:
            return None
        try:
            flow = self._flows[client] = _Flow(backend, holding)
        except OSError:
            self._shares.release(holding)
            raise
        self._loop.add_reader(flow.socket, self._return, client, flow)
        if not self._sweeper:
            self._sweeper = self._loop.call_later(FLOW_SECONDS / 2, self._sweep)
        return flow

    def _return(self, client: Backend, flow: "_Flow") -> None:
        try:
            self._socket.sendto(flow.socket.recv(LARGEST_DATAGRAM), client)
            flow.used = time.monotonic()
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("endpoint %s:%d: %s", *flow.backend, error)
            self._end(client)

    def _end(self, client: Backend) -> None:
        flow = self._flows.pop(client, None)
        if flow:
            self._loop.remove_reader(flow.socket)
            flow.socket.close()
            self._shares.release(flow.holding)

    def _sweep(self) -> None:
        oldest = time.monotonic() - FLOW_SECONDS
        for client in [client for client, flow in self._flows.items() if flow.used < oldest]:
            self._end(client)
        self._sweeper = self._loop.call_later(FLOW_SECONDS / 2, self._sweep) if self._flows else None


class _Flow:
    """One client's socket to its backend."""

    def __init__(self, backend: Backend, holding: Holding) -> None:
        self.backend, self.holding = backend, holding
        self.used = 0.0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self.socket.connect(backend)
        except OSError:
            self.socket.close()
            raise


LISTENERS = {"TCP": TcpListener, "UDP": UdpListener}


def bind(protocol: str, address: Backend) -> socket.socket:
    """Make a socket for TCP or UDP that is bound to an address."""
    kind = socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM
    return bound_to(socket.socket(socket.AF_INET, kind), address)


def bound_to(sock: socket.socket, address: Backend) -> socket.socket:
    """Bind a new socket, or close it and raise OSError."""
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
