"""``kubectl port-forward``: connections to the ports of a pod, multiplexed over one connection of the client.

kubectl tunnels a SPDY connection with a data and an error stream per connection (``spdy.py``) in a WebSocket;
older clients use SPDY without a WebSocket (``upgrade.py``). Client libraries use a WebSocket with a pair of
channels per port, which is closed when the pod has closed all of them.
Connections are made to the pod's loopback, in its network namespace.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from localkube.kubelet.streaming import spdy
from localkube.kubelet.streaming.channels import Channels, unless_gone
from localkube.kubelet.work_pools import STREAMS
from localkube.network.addresses import Addresses
from localkube.runtime.client import RuntimeCallError, RuntimeClient
from localkube.tasks import wait_for_first

log = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
TUNNEL = f"SPDY/3.1+{PROTOCOL}"
PROTOCOLS = (TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io")
BLOCK = 64 * 1024
# The bytes that the pod has not read yet on all connections of a client; above this limit, all of them block.
WAITING_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 256  # the overhead of each buffered piece
# kubectl sends 32 KiB at once, the Python client a megabyte.
LARGEST_MESSAGE = 4 * 1024 * 1024
# The streams at a time that Go's HTTP/2 servers allow a client.
MAX_CONNECTIONS = 250
TURNS = 1000

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Streams]]


class PortUnreachable(Exception):
    """Nothing listens on a pod's port."""


async def connect(client: RuntimeClient, *, pod: str, port: int, addresses: Addresses) -> Streams:
    """Connect to a port on a pod's loopback."""
    loop, problem = asyncio.get_running_loop(), ""
    for v6 in (False, True):
        try:
            answer, (descriptor,) = await client.call("socket", pod=pod, v6=v6)
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, addresses.reach(answer["loopback"], port))
                return await asyncio.open_connection(sock=sock)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            # Report the error of IPv4, which is familiar; there may be no IPv6.
            problem = problem or (os.strerror(error.errno) if error.errno else str(error))
        except RuntimeCallError as error:
            problem = problem or error.message
    raise PortUnreachable(f"failed to connect to localhost:{port} inside the pod: {problem.lower()}")


@dataclass
class ForwardedConnection:
    """The two streams of one connection."""

    error: int | None = None
    data: int | None = None
    task: asyncio.Task[None] | None = None


class SpdyTunnel:
    """Serves a client's SPDY connection.

    Args:
        messages: The bytes from the client, until it disconnects.
        send: Sends bytes to the client.
        connect: Connects to a port of the pod.
        about: The pod, for messages.
    """

    def __init__(
        self,
        messages: AsyncIterator[bytes],
        send: Callable[[bytes], Awaitable[None]],
        *,
        connect: Connect,
        about: str,
    ) -> None:
        self._messages, self._write, self._connect, self._about = messages, send, connect, about
        self._framer = spdy.SpdyFramer()
        self._backlog = Backlog()
        self._pairs: dict[str, ForwardedConnection] = {}
        self._inputs: dict[int, ClientInput] = {}

    async def run(self) -> None:
        """Serve until the client disconnects, then close all connections."""
        try:
            async for message in self._messages:
                for turn, frame in enumerate(self._framer.feed(message)):
                    await self._take(frame)
                    if frame.kind == spdy.SYN_STREAM or turn % TURNS == TURNS - 1:
                        await asyncio.sleep(0)  # let other tasks run
        except spdy.ProtocolError as error:
            log.warning("port-forward to %s: %s", self._about, error)
        finally:
            tasks = [pair.task for pair in self._pairs.values() if pair.task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, frame: spdy.SpdyFrame) -> None:
        if frame.kind == spdy.SYN_STREAM:
            await self._write(self._framer.reply(frame.number))
            if not self._open(frame):
                await self._write(spdy.reset(frame.number, spdy.REFUSED_STREAM))
        elif frame.kind == spdy.PING:
            await self._write(spdy.ping(frame.number))
        elif source := self._inputs.get(frame.number):
            if frame.kind == spdy.DATA:
                await source.feed(frame.data, end=frame.fin)
            elif frame.kind == spdy.RST_STREAM:
                source.abort()

    def _open(self, frame: spdy.SpdyFrame) -> bool:
        """Add a stream to its connection; False if there are too many, or it is invalid."""
        request, kind, port = (frame.headers.get(name, "") for name in ("requestid", "streamtype", "port"))
        pair = self._pairs.get(request)
        if pair is None and len(self._pairs) >= MAX_CONNECTIONS:
            return False
        if kind not in ("data", "error") or not is_port(port) or pair and getattr(pair, kind) is not None:
            return False
        pair = self._pairs.setdefault(request, ForwardedConnection())
        setattr(pair, kind, frame.number)
        if kind == "data":
            self._inputs[frame.number] = ClientInput(self._backlog)
        if pair.error is not None and pair.data is not None:
            pair.task = asyncio.create_task(self._forward(request, pair, int(port)), name=f"forward {port}")
        return True

    async def _forward(self, request: str, pair: ForwardedConnection, port: int) -> None:
        assert pair.data is not None and pair.error is not None
        stream, problem_stream = pair.data, pair.error
        source, problem = self._inputs[stream], b""
        try:
            await pump(source, await self._connect(port), lambda data: self._send(stream, data))
        except PortUnreachable as error:
            problem = f"error forwarding port {port} to pod {self._about}: {error}".encode()
        except ConnectionError as error:
            log.debug("port-forward to %s: %s", self._about, error)
        finally:
            source.abort()
            del self._inputs[stream], self._pairs[request]
        with contextlib.suppress(ConnectionError):
            if problem:
                await self._write(spdy.data(problem_stream, problem))
            await self._write(spdy.data(problem_stream, b"", fin=True))
            if not source.has_ended_output:
                await self._send(stream, b"")

    async def _send(self, stream: int, data: bytes) -> None:
        await STREAMS.pass_on(len(data))
        await self._write(spdy.data(stream, data, fin=not data))


class Backlog:
    """The bytes that a client has sent and the pod has not read."""

    def __init__(self) -> None:
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def add(self, count: int) -> None:
        """Wait until there is less than ``WAITING_BYTES``, and add to it."""
        await self._room.wait()
        self._count(count)

    def remove(self, count: int) -> None:
        self._count(-count)

    def _count(self, count: int) -> None:
        self._bytes += count
        if self._bytes < WAITING_BYTES:
            self._room.set()
        else:
            self._room.clear()


class ClientInput:
    """The input of a client for one connection, which may not be established yet."""

    def __init__(self, backlog: Backlog) -> None:
        self.has_ended_output = False
        self.aborted = asyncio.Event()
        self.ended = asyncio.Event()
        self._backlog = backlog
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._complete = False

    async def feed(self, data: bytes, *, end: bool = False) -> None:
        """Buffer data; ``end`` is the client's EOF. After that, or an abort, data are dropped."""
        if not (data or end):
            return
        await self._backlog.add(len(data) + PIECE_BYTES)
        if self._complete or self.aborted.is_set():
            self._backlog.remove(len(data) + PIECE_BYTES)
            return
        self._complete = end
        self._pieces.put_nowait((data, end))

    async def forward(self, writer: asyncio.StreamWriter) -> None:
        """Write everything to the connection, with backpressure."""
        while not self.ended.is_set():
            data, end = await self._pieces.get()
            try:
                writer.write(data)
                if end:
                    writer.write_eof()
                await writer.drain()
            except (ConnectionError, RuntimeError):
                # The pod has closed: further data are lost, as on any connection.
                self.abort()
            finally:
                self._backlog.remove(len(data) + PIECE_BYTES)
            if end:
                self.ended.set()

    def abort(self) -> None:
        self.aborted.set()
        while not self._pieces.empty():
            data, _ = self._pieces.get_nowait()
            self._backlog.remove(len(data) + PIECE_BYTES)


def is_port(text: str) -> bool:
    """Check for a valid port number.

    Example:
        >>> is_port("8080"), is_port("0"), is_port("²")
        (True, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535


async def pump(source: ClientInput, streams: Streams, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Copy between a connection and a client until both directions end, or the client resets.

    Args:
        send: Receives the pod's output; empty, once, at EOF.
    """
    reader, writer = streams
    output = asyncio.create_task(_output(source, reader, send))
    forwarding = asyncio.create_task(source.forward(writer))
    try:
        await wait_for_first(_both(output, source), source.aborted.wait())
    finally:
        for task in (output, forwarding):
            task.cancel()
        await asyncio.gather(output, forwarding, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _both(output: asyncio.Task[None], source: ClientInput) -> None:
    await output
    await source.ended.wait()


async def _output(
    source: ClientInput, reader: asyncio.StreamReader, send: Callable[[bytes], Awaitable[None]]
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(BLOCK):
            await send(data)
    source.has_ended_output = True
    await send(b"")


async def serve_channels(channels: Channels, ports: Sequence[int], *, connect: Connect, about: str) -> None:
    """Serve a client library: a data and an error channel per port, each beginning with the port number."""
    backlog = Backlog()
    inputs = [ClientInput(backlog) for _ in ports]

    async def forward(index: int, port: int) -> None:
        async def send(data: bytes) -> None:
            if data:
                await channels.send(2 * index, data)
            else:  # the protocol cannot signal EOF of the client's half
                inputs[index].abort()

        with contextlib.suppress(ConnectionError):
            try:
                await pump(inputs[index], await connect(port), send)
            except PortUnreachable as error:
                inputs[index].abort()
                text = f"error forwarding port {port} to pod {about}: {error}"
                await channels.send(2 * index + 1, text.encode())

    async def forward_all() -> bool:
        async with asyncio.TaskGroup() as tasks:
            for index, port in enumerate(ports):
                tasks.create_task(forward(index, port), name=f"forward {port}")
        return True

    async def feed() -> None:
        async for channel, data in channels.received():
            if channel in range(0, 2 * len(ports), 2):
                await inputs[channel // 2].feed(data)

    for index, port in enumerate(ports):
        for channel in (2 * index, 2 * index + 1):
            await channels.send(channel, struct.pack("<H", port))
    if await unless_gone(forward_all(), feed()):
        await channels.socket.close()
