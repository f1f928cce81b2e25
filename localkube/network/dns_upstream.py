"""Questions to name servers outside the cluster: UDP with retries, TCP for large answers. No caching."""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from dnslib import RR, DNSError, DNSRecord

from localkube.network.fair_shares import PodNamespaces, Shares

log = logging.getLogger(__name__)

TIMEOUTS, SHORT_TIMEOUTS = (1.0, 2.0), (0.3,)
SHORT_FOR_SECONDS = 10
AT_ONCE, OF_NAMESPACE, WAITING = 256, 32, 8192


class UpstreamResolver:
    """Queries name servers in turn.

    After a query without an answer, queries of the same namespace time out after 0.3 s for ten seconds, so
    that a host without a network does not slow down every lookup.
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], *, namespaces: PodNamespaces | None = None
    ) -> None:
        self._servers = tuple(servers)
        self._namespaces = namespaces or PodNamespaces()
        self._waiting = Shares(WAITING, self._namespaces)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._namespace_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._failed_at: dict[str, float] = {}

    async def forward(self, query: bytes, *, client: str, tcp: bool = False) -> bytes | None:
        """Return the answer to a packet of a client; None after about three seconds a server."""
        holding = self._waiting.acquire(client) if self._servers else None
        if holding is None:
            return None
        try:
            return await self._forward(query, self._namespaces.of(client), tcp)
        finally:
            self._waiting.release(holding)

    async def _forward(self, query: bytes, namespace: str, tcp: bool) -> bytes | None:
        slots = self._namespace_slots.setdefault(namespace, asyncio.Semaphore(OF_NAMESPACE))
        async with slots, self._slots:
            failed_at = self._failed_at.get(namespace, float("-inf"))
            timeouts = SHORT_TIMEOUTS if time.monotonic() - failed_at < SHORT_FOR_SECONDS else TIMEOUTS
            for seconds in timeouts:
                for server in self._servers:
                    answer = await self._exchange(server, query, tcp, seconds)
                    if answer:
                        self._failed_at.pop(namespace, None)
                        return answer
        self._failed_at[namespace] = time.monotonic()
        return None

    async def resolve(self, name: str, kind: str, *, client: str) -> list[RR]:
        """Resolve a name; no records when there is no answer."""
        query = DNSRecord.question(name, kind).pack()
        answer = await self.forward(query, client=client)
        try:
            parsed = DNSRecord.parse(answer) if answer else None
            if parsed and parsed.header.tc:
                answer = await self.forward(query, client=client, tcp=True)
                parsed = DNSRecord.parse(answer) if answer else None
        except DNSError as error:
            log.warning("an upstream name server sent an answer that cannot be read: %s", error)
            return []
        return parsed.rr if parsed else []

    async def _exchange(
        self, server: tuple[str, int], query: bytes, tcp: bool, seconds: float
    ) -> bytes | None:
        sent = secrets.token_bytes(2) + query[2:]
        try:
            async with asyncio.timeout(seconds):
                answer = await (_over_tcp if tcp else _over_udp)(server, sent)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("upstream %s:%d: %s", *server, error or type(error).__name__)
            return None
        return query[:2] + answer[2:]


async def _over_udp(server: tuple[str, int], query: bytes) -> bytes:
    """Send from a new port, and wait for an answer with the same number."""
    loop = asyncio.get_running_loop()
    exchange = _Exchange(query, loop.create_future())
    transport, _ = await loop.create_datagram_endpoint(lambda: exchange, remote_addr=server)
    try:
        transport.sendto(query)
        return await exchange.answer
    finally:
        transport.close()


async def _over_tcp(server: tuple[str, int], query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(query).to_bytes(2) + query)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.close()


class _Exchange(asyncio.DatagramProtocol):
    def __init__(self, query: bytes, answer: asyncio.Future[Any]) -> None:
        self.answer = answer
        self._query = query

    def datagram_received(self, data: bytes, _address: tuple[str, int]) -> None:
        if len(data) >= 12 and data[:2] == self._query[:2] and data[2] & 0x80 and not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
