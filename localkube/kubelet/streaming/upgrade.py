"""A connection that SPDY takes over from HTTP: port-forwards of client-go without WebSockets.

aiohttp hands a connection over only to WebSockets, but accepts any parser for the data after a request.

Source: k8s.io/streaming/pkg/httpstream/spdy/upgrade.go
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from aiohttp import hdrs, web

from localkube.kubelet.work_pools import STREAMS

SPDY = "SPDY/3.1"
PROTOCOL = "X-Stream-Protocol-Version"
BLOCK = 64 * 1024


def is_spdy(request: web.Request) -> bool:
    return request.headers.get(hdrs.UPGRADE, "").lower() == SPDY.lower()


class UpgradedConnection:
    """The bytes of both directions, with backpressure on the client."""

    def __init__(self) -> None:
        self.response = web.StreamResponse(status=101)
        self._reader = asyncio.StreamReader(limit=BLOCK)

    @classmethod
    async def accept(cls, request: web.Request, protocols: Sequence[str]) -> "UpgradedConnection":
        """Finish the handshake with the client's first protocol that is among ``protocols``."""
        offered = [
            protocol.strip() for line in request.headers.getall(PROTOCOL, []) for protocol in line.split(",")
        ]
        protocol = next((protocol for protocol in offered if protocol in protocols), None)
        if protocol is None:
            text = f"requested protocol(s) are not supported: {offered}; supports {', '.join(protocols)}"
            raise web.HTTPForbidden(text=text)
        connection = cls()
        headers = {hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: SPDY, PROTOCOL: protocol}
        connection.response.headers.update(headers)
        connection.response.force_close()
        assert request.transport, "it is connected"
        connection._reader.set_transport(request.transport)
        request.protocol.set_parser(cast(Any, connection))
        await connection.response.prepare(request)
        return connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Receive data, as a parser of aiohttp."""
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the client's data until it disconnects."""
        while data := await self._reader.read(BLOCK):
            await STREAMS.pass_on(len(data))
            yield data

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ConnectionError: The client has disconnected.
        """
        await self.response.write(data)
