"""The cluster's DNS server: UDP and TCP, the cluster's zone from memory, other names from upstream.

Answers to single names are cached as packets until the zone changes. Negative answers may not be cached
(their SOA has TTL 0), because a training pod often looks up its peer before the peer exists. Answers from
upstream are not cached. A client that floods the server slows down only itself: others are served in turn.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dnslib import AAAA, CNAME, EDNS0, PTR, QTYPE, RCODE, RR, SOA, SRV, TXT, A, DNSError, DNSRecord

from localkube.network.dns_upstream import UpstreamResolver
from localkube.network.dns_zone import ResourceRecord, Zone, ZoneAnswer
from localkube.network.fair_datagrams import FairDatagrams
from localkube.network.fair_shares import Allowances, PodNamespaces, Shares

log = logging.getLogger(__name__)

Reply = Callable[[bytes], None]
TTL_SECONDS = 5
LARGEST = 4096
IDLE_SECONDS = 10
CACHED_ANSWERS, LARGEST_CACHED_QUERY = 4096, 300
CONNECTIONS = 512
# The approximate processor time for forwarding a question.
FORWARDING_SECONDS = 0.0005
CHAIN = 8
DATA = {
    "A": A,
    "AAAA": AAAA,
    "CNAME": CNAME,
    "PTR": PTR,
    "TXT": TXT,
    "SRV": lambda value: SRV(priority=0, weight=100, port=value[0], target=value[1]),
}


class DnsServer:
    """Answers DNS questions; an async context manager.

    Args:
        upstreams: Addresses (host, port) of name servers for all other names, tried in this order. Without
            one such names get SERVFAIL at once.
    """

    def __init__(
        self,
        zone: Zone,
        *,
        upstreams: Sequence[tuple[str, int]] = (),
        namespaces: PodNamespaces | None = None,
    ) -> None:
        self._zone, self._namespaces = zone, namespaces or PodNamespaces()
        self._upstream = UpstreamResolver(upstreams, namespaces=self._namespaces)
        self._allowances = Allowances(self._namespaces)
        self._connections = Shares(CONNECTIONS, self._namespaces)
        self._closers: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cache: dict[tuple[bool, bytes], bytes] = {}
        self._cache_version = -1

    async def __aenter__(self) -> "DnsServer":
        return self

    async def __aexit__(self, *exc: object) -> None:
        for closer in self._closers:
            closer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self, host: str, port: int) -> int:
        """Listen on UDP and TCP; return the port (chosen if 0)."""
        server = await asyncio.start_server(self._stream, host, port, backlog=CONNECTIONS)
        self._closers.append(server)
        port = server.sockets[0].getsockname()[1]
        self._closers.append(
            FairDatagrams(
                host,
                port,
                handle=lambda data, client, reply: self.serve(data, client[0], tcp=False, reply=reply),
                allowances=self._allowances,
            )
        )
        return port

    def serve(self, query: bytes, client: str, *, tcp: bool, reply: Reply) -> None:
        """Answer one packet of a client by ``reply(packet)``, at once or when the answer comes."""
        cached = self._find_cached(query, tcp)
        if cached is not None:
            reply(cached)
            return
        try:
            question = DNSRecord.parse(query)
        except (DNSError, ValueError):  # ValueError for a name that is not text
            if len(query) >= 12 and not query[2] & 0x80:
                reply(query[:2] + bytes((0x80 | query[2] & 0x79, RCODE.FORMERR)) + bytes(8))
            return
        if question.header.qr:
            return
        if question.header.opcode or len(question.questions) != 1:
            reply(_failure(question, "NOTIMP" if question.header.opcode else "FORMERR"))
        elif not self._zone.owns(_name(question.q.qname), self._namespaces.of(client)):
            self._later(self._forward(query, question, client, tcp, reply))
        else:
            answer, outside, steady = self._answer(question)
            if outside:
                self._later(self._complete(question, answer, outside, client, tcp, reply))
                return
            packet = _packed(question, answer, tcp)
            if steady and self._zone.owns(_name(question.q.qname)):  # from every namespace
                self._add_cached(query, tcp, packet)
            reply(packet)

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, query: bytes, question: DNSRecord, client: str, tcp: bool, reply: Reply) -> None:
        self._allowances.spend(client, FORWARDING_SECONDS)
        reply(await self._upstream.forward(query, client=client, tcp=tcp) or _failure(question, "SERVFAIL"))

    async def _complete(
        self, question: DNSRecord, answer: DNSRecord, outside: str, client: str, tcp: bool, reply: Reply
    ) -> None:
        """Add the records of an ExternalName."""
        kind = QTYPE[question.q.qtype]
        answer.add_answer(*await self._upstream.resolve(outside, kind, client=client))
        reply(_packed(question, answer, tcp))

    def _answer(self, question: DNSRecord) -> tuple[DNSRecord, str, bool]:
        """Return the reply, the foreign name to resolve if any, and whether the reply can be cached."""
        kind = QTYPE[question.q.qtype]
        name = _name(question.q.qname)
        answer = self._zone.lookup(name, kind)
        records, outside = self._chain(answer, kind)
        if len(records) > 1 and kind == "A" and not outside:
            records = random.sample(records, len(records)) if records[0].kind == "A" else records
        reply = question.reply(ra=1, aa=1)
        reply.header.rcode = RCODE.NOERROR if answer.exists else RCODE.NXDOMAIN
        for record in records:
            reply.add_answer(_resource(record, question.q.qname if record.name == name else record.name))
        if not records:
            reply.add_auth(self._start_of_authority(name))
        for record in answer.additional:
            reply.add_ar(_resource(record, record.name))
        if _edns(question):
            reply.add_ar(EDNS0(udp_len=LARGEST))
        return reply, outside, len(records) < 2

    def _chain(self, answer: ZoneAnswer, kind: str) -> tuple[list[ResourceRecord], str]:
        """Follow CNAMEs inside the zone; return the records, and the foreign name at the end if any."""
        records = list(answer.records)
        while records and records[-1].kind == "CNAME" and kind != "CNAME":
            target = records[-1].value
            if not self._zone.owns(target):
                return records, target
            following = self._zone.lookup(target, kind).records
            if not following or len(records) >= CHAIN:
                break
            records += following
        return records, ""

    def _start_of_authority(self, name: str) -> RR:
        owner = "in-addr.arpa" if name.endswith(".arpa") else self._zone.domain
        times = (1, 7200, 1800, 86400, 0)
        data = SOA(f"ns.dns.{self._zone.domain}", f"hostmaster.{self._zone.domain}", times)
        return RR(owner, QTYPE.SOA, rdata=data, ttl=0)

    def _find_cached(self, query: bytes, tcp: bool) -> bytes | None:
        if self._cache_version != self._zone.version:
            self._cache.clear()
            self._cache_version = self._zone.version
        answer = self._cache.get((tcp, query[2:]))
        return answer and query[:2] + answer

    def _add_cached(self, query: bytes, tcp: bool, packet: bytes) -> None:
        if len(query) > LARGEST_CACHED_QUERY:
            return
        if len(self._cache) >= CACHED_ANSWERS:
            self._cache.clear()
        self._cache[tcp, query[2:]] = packet[2:]

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, *_ = writer.get_extra_info("peername") or ("",)
        holding = self._connections.acquire(client)
        if holding is None:
            writer.transport.abort()
            return
        try:
            while await self._exchange(reader, writer, client):
                pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.debug("a TCP client of the name server has disconnected: %s", error or type(error).__name__)
        finally:
            self._connections.release(holding)
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> bool:
        """Answer one question of a connection; False if its client's allowance is used up."""
        async with asyncio.timeout(IDLE_SECONDS):
            size = int.from_bytes(await reader.readexactly(2))
            query = await reader.readexactly(size)
        done = asyncio.get_running_loop().create_future()
        started = time.thread_time()
        self.serve(query, client, tcp=True, reply=done.set_result)
        has_allowance = self._allowances.spend(client, time.thread_time() - started)
        async with asyncio.timeout(IDLE_SECONDS):
            packet = await done
            writer.write(len(packet).to_bytes(2) + packet)
            await writer.drain()
        return has_allowance


def _name(label: object) -> str:
    return str(label).rstrip(".").lower()


def _resource(record: ResourceRecord, owner: object) -> RR:
    return RR(owner, getattr(QTYPE, record.kind), rdata=DATA[record.kind](record.value), ttl=TTL_SECONDS)


def _failure(question: DNSRecord, code: str) -> bytes:
    reply = question.reply(ra=1, aa=0)
    reply.header.rcode = getattr(RCODE, code)
    return reply.pack()


def _packed(question: DNSRecord, answer: DNSRecord, tcp: bool) -> bytes:
    packet = answer.pack()
    if tcp or len(packet) <= _max_size(question):
        return packet
    # Not dnslib's truncate(): it leaves out the question, and glibc ignores an answer without it.
    short = question.reply(ra=1, aa=1)
    short.header.tc = 1
    return short.pack()


def _edns(question: DNSRecord) -> RR | None:
    return next((record for record in question.ar if record.rtype == QTYPE.OPT), None)


def _max_size(question: DNSRecord) -> int:
    option = _edns(question)
    return max(512, min(option.edns_len, LARGEST)) if option else 512
