"""WebSockets with several channels, as ``exec``, ``attach`` and ``port-forward`` use them.

The first byte of a message is its channel. A text message is its UTF-8 bytes, as for the kubelet: the
official Python client sends strings as text. In the base64 protocols, which web consoles use, the channel is
a digit and the data are base64.

Source: k8s.io/streaming/pkg/httpstream/wsstream/conn.go
"""

import base64
import binascii
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from aiohttp import WSMsgType, hdrs, web

from localkube.kubelet.work_pools import STREAMS
from localkube.tasks import wait_for_first

log = logging.getLogger(__name__)

CLOSE_SECONDS = 1.0
# The limit of a message in golang.org/x/net/websocket, and so in the kubelet.
LARGEST_MESSAGE = 32 * 1024 * 1024
DIGIT = ord("0")


async def accept(
    request: web.Request, protocols: Sequence[str], *, largest: int = LARGEST_MESSAGE
) -> web.WebSocketResponse:
    """Finish the handshake with the client's first protocol that is among ``protocols``.

    Args:
        largest: The maximum size of a message in bytes; a larger one closes the connection.
    """
    sock = web.WebSocketResponse(
        protocols=protocols,
        compress=False,
        decode_text=False,
        max_msg_size=largest,
        timeout=CLOSE_SECONDS,
    )
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL)
    ready = sock.can_prepare(request)
    if offered and ready.ok and ready.protocol is None:
        supported = ", ".join(protocols)
        raise web.HTTPForbidden(
            text=f"requested protocol(s) are not supported: {offered}; supports {supported}"
        )
    await sock.prepare(request)
    return sock


async def messages(sock: web.WebSocketResponse) -> AsyncIterator[bytes]:
    """Yield the bytes of each message, binary or text, until the client disconnects."""
    async for message in sock:
        if message.type in (WSMsgType.BINARY, WSMsgType.TEXT) and message.data:
            await STREAMS.pass_on(len(message.data))
            yield message.data


class Channels:
    """The channels of an accepted WebSocket."""

    def __init__(self, sock: web.WebSocketResponse) -> None:
        self.socket = sock
        self._base64 = "base64." in (sock.ws_protocol or "")

    async def send(self, channel: int, data: bytes) -> None:
        await STREAMS.pass_on(len(data))
        if self._base64:
            await self.socket.send_str(f"{channel}{base64.b64encode(data).decode()}")
        else:
            await self.socket.send_bytes(bytes([channel]) + data)

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield channel and data of each message until the client disconnects; skip broken base64."""
        async for message in messages(self.socket):
            channel, data = message[0], message[1:]
            if self._base64:
                try:
                    channel, data = channel - DIGIT, base64.b64decode(data)
                except binascii.Error as error:
                    log.warning("a message on channel %s is skipped: %s", channel - DIGIT, error)
                    continue
            yield channel, data


async def unless_gone(work: Awaitable[Any], disconnected: Awaitable[Any]) -> Any:
    """Await ``work``; None when ``disconnected``, which feeds it, ends first: the client has disconnected."""
    first = await wait_for_first(work, disconnected)
    return None if first.cancelled() else first.result()
