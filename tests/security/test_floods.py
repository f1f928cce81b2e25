"""Clients and pods that send more than anybody takes: what is kept of it stays small."""

import asyncio
import json
import struct
import tracemalloc
import zlib
from contextlib import contextmanager

import aiohttp
import pytest
from aiohttp import web

from localkube.kubelet.streaming import port_forward, spdy
from localkube.kubelet.streaming.channels import Channels, accept, messages
from localkube.kubelet.streaming.port_forward import SpdyTunnel, serve_channels
from localkube.kubelet.streaming.remote_command import RESIZE, RemoteCommand, StreamOptions

MEGABYTE = 1024 * 1024


@contextmanager
def at_most(megabytes: int):
    """Fail if Python takes more memory than that at any time."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < megabytes * MEGABYTE, f"{most / MEGABYTE:.0f} MB"


def syn_stream(number: int, block: bytes) -> bytes:
    body = struct.pack(">IIH", number, 0, 0) + block
    return struct.pack(">HHI", 0x8003, spdy.SYN_STREAM, len(body)) + body


class Client:
    """A client of SPDY: compresses headers."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=spdy.DICTIONARY)

    def compressed(self, text: bytes) -> bytes:
        return self._deflate.compress(text) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def open(self, number: int, **headers: str) -> bytes:
        text = struct.pack(">I", len(headers))
        for pair in headers.items():
            text += b"".join(struct.pack(">I", len(word)) + word.encode() for word in pair)
        return syn_stream(number, self.compressed(text))

    def connection(self, request: int, port: str) -> bytes:
        """Open both streams of a connection; the data stream's number is ``4 * request + 3``."""
        about = {"requestid": str(request), "port": port}
        error = self.open(4 * request + 1, streamtype="error", **about)
        return error + self.open(4 * request + 3, streamtype="data", **about)


@pytest.mark.parametrize(
    "text",
    [
        struct.pack(">III", 1, 1, ord("x")) + b"\0" * 64 * MEGABYTE,
        struct.pack(">I", 8 * MEGABYTE) + b"\0" * 64 * MEGABYTE,
    ],
    ids=["a long header", "many headers"],
)
def test_headers_that_grow_a_thousandfold_when_unpacked_are_refused(text):
    frame = syn_stream(1, Client().compressed(text))
    del text
    assert len(frame) < MEGABYTE
    with at_most(8), pytest.raises(spdy.ProtocolError, match="headers"):
        list(spdy.SpdyFramer().feed(frame))


async def test_a_message_full_of_streams_and_headers_lets_others_have_their_turns():
    turns, client = 0, Client()
    headers = {str(number): "x" * 100 for number in range(100)}
    message = b"".join(client.open(number, **headers) for number in range(1, 101))

    async def received():
        yield message

    async def send(data):
        pass

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await SpdyTunnel(received(), send, connect=None, about="a pod").run()
    counting.cancel()
    assert turns >= 100


def test_headers_of_the_size_of_a_small_book_are_refused():
    frame = Client().open(1, streamtype="data", port="80", more="x" * 20_000)
    with pytest.raises(spdy.ProtocolError, match="headers of more"):
        list(spdy.SpdyFramer().feed(frame))


async def test_data_sent_before_a_connection_is_up_waits_at_the_client():
    async def connect(port):
        await asyncio.Event().wait()

    client = Client()
    frame = spdy.data(7, b"x" * MEGABYTE)
    async with tunnel(connect) as sock:
        await sock.send_bytes(client.connection(1, "80"))
        with at_most(40), pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                for _ in range(200):
                    await sock.send_bytes(frame)


async def test_data_that_pods_do_not_read_waits_at_the_client():
    """Each of these alone would be within the limit."""
    quiet = await asyncio.start_server(lambda reader, writer: asyncio.Event().wait(), "127.0.0.1", 0)
    port = quiet.sockets[0].getsockname()[1]
    client = Client()
    async with quiet, tunnel(lambda _: asyncio.open_connection("127.0.0.1", port)) as sock:
        with at_most(40), pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                for request in range(20):
                    await sock.send_bytes(client.connection(request, "80"))
                    for _ in range(12):
                        await sock.send_bytes(spdy.data(4 * request + 3, b"x" * MEGABYTE))


async def test_connections_beyond_the_limit_are_refused_and_the_others_work():
    echo = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
    port = echo.sockets[0].getsockname()[1]
    client, framer = Client(), spdy.SpdyFramer()
    most = port_forward.MAX_CONNECTIONS
    async with echo, tunnel(lambda _: asyncio.open_connection("127.0.0.1", port)) as sock:
        for request in range(most + 1):
            await sock.send_bytes(
                client.open(4 * request + 1, requestid=str(request), streamtype="error", port="80")
            )
        refused = await frame_of(sock, framer, spdy.RST_STREAM)
        assert refused.number == 4 * most + 1
        await sock.send_bytes(client.open(3, requestid="0", streamtype="data", port="80"))
        assert (await frame_of(sock, framer, spdy.DATA)).data == b"hello"


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "data", "port": "many"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "task", "port": "80"},
        {"streamtype": "error", "port": "80"},
    ],
)
async def test_a_stream_that_makes_no_sense_is_refused_and_the_others_work(headers):
    echo = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
    port = echo.sockets[0].getsockname()[1]
    client, framer = Client(), spdy.SpdyFramer()
    async with echo, tunnel(lambda _: asyncio.open_connection("127.0.0.1", port)) as sock:
        await sock.send_bytes(client.open(1, requestid="1", streamtype="error", port="80"))
        await sock.send_bytes(client.open(9, requestid="1", **headers))
        assert (await frame_of(sock, framer, spdy.RST_STREAM)).number == 9
        await sock.send_bytes(client.open(3, requestid="1", streamtype="data", port="80"))
        assert (await frame_of(sock, framer, spdy.DATA)).data == b"hello"


async def test_early_data_of_a_client_library_wait_at_the_client():
    async def connect(port):
        await asyncio.Event().wait()

    async def serve(request):
        sock = await accept(request, ["v4.channel.k8s.io"], largest=port_forward.LARGEST_MESSAGE)
        await serve_channels(Channels(sock), [80], connect=connect, about="a pod")
        return sock

    async with served(serve, "v4.channel.k8s.io") as sock:
        with at_most(40), pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                for _ in range(200):
                    await sock.send_bytes(b"\0" + b"x" * MEGABYTE)


async def test_input_that_a_command_does_not_read_waits_at_the_client():
    async def serve(request):
        command = await RemoteCommand.accept(request, StreamOptions(True, True, False, False))
        async for _ in command.input():
            await asyncio.Event().wait()

    async with served(serve, "v5.channel.k8s.io") as sock:
        with at_most(40), pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                for _ in range(200):
                    await sock.send_bytes(b"\0" + b"x" * MEGABYTE)


async def test_a_window_of_a_million_columns_is_no_work():
    window_sizes = []

    async def serve(request):
        command = await RemoteCommand.accept(request, StreamOptions(True, True, False, True))
        window_sizes.extend([size async for size in command.input()])
        return command.response

    async with served(serve, "v5.channel.k8s.io") as sock:
        sizes = [
            json.dumps({"Width": 80, "Height": 24}),
            '{"Width": 1, "Height": 1, "x": [' + "1," * 10 * MEGABYTE,
        ]
        with at_most(120):
            for size in [*sizes, "[" * 100_000, *sizes[:1]]:
                await sock.send_bytes(bytes([RESIZE]) + size.encode())
            await sock.close()
    assert window_sizes == [(80, 24)] * 2


async def answer_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await reader.read()
    writer.close()


async def frame_of(
    sock: aiohttp.ClientWebSocketResponse, framer: spdy.SpdyFramer, kind: int
) -> spdy.SpdyFrame:
    """Receive frames until one of that kind."""
    async with asyncio.timeout(20):
        while True:
            message = await sock.receive_bytes()
            for frame in framer.feed(message):
                if frame.kind == kind:
                    return frame


def tunnel(connect):
    """Yield a client of kubectl's tunnel."""

    async def serve(request):
        sock = await accept(request, [port_forward.TUNNEL], largest=port_forward.LARGEST_MESSAGE)
        await SpdyTunnel(messages(sock), sock.send_bytes, connect=connect, about="a pod").run()
        return sock

    return served(serve, port_forward.TUNNEL)


class served:
    """A client's WebSocket to a server in this process."""

    def __init__(self, serve, protocol: str) -> None:
        self._protocol = protocol
        self._app = web.Application()
        self._app.router.add_get("/", serve)

    async def __aenter__(self) -> aiohttp.ClientWebSocketResponse:
        self._runner = web.AppRunner(self._app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._session = aiohttp.ClientSession()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        return await self._session.ws_connect(url, protocols=[self._protocol], max_msg_size=0)

    async def __aexit__(self, *exc: object) -> None:
        # The server first: the client's transport waits until what it holds is read, or nobody is there.
        await self._runner.cleanup()
        await self._session.close()
