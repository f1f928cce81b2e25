"""What is fuzzed: functions of bytes that pods and users send. A target fails by any exception of its own.

Each takes one input, and lets pass only what its part may raise.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMessage, WSMsgType

from localkube.bundles.unpack import _unpack as unpack_bundle
from localkube.errors import LocalClusterError
from localkube.kubelet.streaming import port_forward, spdy
from localkube.kubelet.streaming.channels import Channels, messages
from localkube.kubelet.streaming.remote_command import RemoteCommand, StreamOptions
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.runtime.launches import Launch

from ..node.fake_informer import FakeInformer

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 10


class FakeSocket:
    """A WebSocket whose client has sent these messages and then left."""

    def __init__(self, messages: list[bytes], protocol: str) -> None:
        self._messages, self.ws_protocol = messages, protocol

    async def __aiter__(self) -> AsyncIterator[WSMessage]:
        for message in self._messages:
            yield WSMessage(WSMsgType.BINARY, message, "")
            await asyncio.sleep(0)

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.sleep(0)

    async def send_str(self, data: str) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass


def pieces(data: bytes) -> list[bytes]:
    """Cut an input into messages, each behind its length in two bytes."""
    cut = []
    while data:
        length = int.from_bytes(data[:2])
        cut.append(data[2 : 2 + length])
        data = data[2 + length :]
    return cut


def spdy_messages(data: bytes) -> list[bytes]:
    """Make messages of SPDY: what begins with an even byte as it is, the others from headers."""
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    messages = []
    for piece in pieces(data):
        body = piece[1:]
        if piece and piece[0] % 2:
            block = deflate.compress(body[4:]) + deflate.flush(zlib.Z_SYNC_FLUSH)
            content = body[:4].ljust(4, b"\0") + bytes(6) + block
            body = struct.pack(">HHI", 0x8003, spdy.SYN_STREAM, len(content)) + content
        messages.append(body)
    return messages


def framer(data: bytes) -> None:
    receiving = spdy.SpdyFramer()
    with contextlib.suppress(spdy.ProtocolError):
        for message in spdy_messages(data):
            for frame in receiving.feed(message):
                assert len(frame.data) <= spdy.LONGEST and len(frame.headers) <= spdy.MAX_HEADERS


def tunnel(data: bytes) -> None:
    sock = FakeSocket(spdy_messages(data), port_forward.TUNNEL)
    served = port_forward.SpdyTunnel(
        messages(sock), sock.send_bytes, connect=_refuse_or_answer, about="a pod"
    )
    _run(served.run())


def channels(data: bytes) -> None:
    protocol = "v4.base64.channel.k8s.io" if data[:1] > b"\x80" else "v4.channel.k8s.io"
    talking = Channels(FakeSocket(pieces(data[1:]), protocol))
    ports = [80, 81]
    _run(port_forward.serve_channels(talking, ports, connect=_refuse_or_answer, about="a pod"))


def remote_command(data: bytes) -> None:
    protocol = "base64.channel.k8s.io" if data[:1] > b"\x80" else "v5.channel.k8s.io"
    command = RemoteCommand(
        Channels(FakeSocket(pieces(data[1:]), protocol)), StreamOptions(True, True, True, True)
    )

    async def read_input() -> None:
        async for message in command.input():
            assert message is None or isinstance(message, bytes) or all(0 <= n <= 0xFFFF for n in message)

    _run(read_input())


def names(data: bytes) -> None:
    replies: list[bytes] = []

    async def serve() -> None:
        zone = Zone(services=FakeInformer(), slices=FakeInformer(), pods=FakeInformer())
        async with DnsServer(zone) as server:
            server.serve(data, "10.244.1.2", tcp=bool(data[:1] > b"\x80"), reply=replies.append)
            await asyncio.sleep(0)

    _run(serve())
    assert all(reply[:2] == data[:2] and len(reply) <= 65535 for reply in replies)


def reports(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    launch = Launch("pod.main.0", "", [], {}, reports=ours)
    with ours, theirs:
        for piece in pieces(data)[:50]:
            if piece:
                theirs.send(piece)
        theirs.shutdown(socket.SHUT_RDWR)
        launch.read()
        assert launch.has_ended


def archive(data: bytes) -> None:
    sys.path.insert(0, str(REPOSITORY / "programs" / "dataset"))
    from events import PreparationError
    from unpack import unpack

    suffix = (".tar.gz", ".zip", ".gz")[data[0] % 3 if data else 0]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as path:
        folder = Path(path)
        packed = folder / f"a{suffix}"
        packed.write_bytes(data[1:])
        (folder / "outside").write_text("as it was")
        with contextlib.suppress(PreparationError, OSError):
            unpack(packed, folder / "into")
        assert (folder / "outside").read_text() == "as it was"
        assert {path.name for path in folder.iterdir()} == {packed.name, "outside", "into"}


def bundle(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as path:
        folder = Path(path)
        (folder / "bundle").write_bytes(data)
        (folder / "goal").mkdir()
        with contextlib.suppress(LocalClusterError):
            unpack_bundle(folder / "bundle", folder / "goal", lambda text: None)
        assert {path.name for path in folder.iterdir()} == {"bundle", "goal"}


async def _refuse_or_answer(port: int) -> port_forward.Streams:
    if port % 2:
        raise port_forward.PortUnreachable("nobody listens")
    ours, theirs = socket.socketpair()
    theirs.close()
    return await asyncio.open_connection(sock=ours)


_loop: list[asyncio.AbstractEventLoop] = []


def _run(work: Any) -> None:
    if not _loop:
        _loop.append(asyncio.new_event_loop())
    failures: list[dict] = []
    _loop[0].set_exception_handler(lambda loop, context: failures.append(context))
    _loop[0].run_until_complete(asyncio.wait_for(work, SECONDS))
    assert not failures, failures


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (framer, tunnel, channels, remote_command, names, reports, archive, bundle)
}
