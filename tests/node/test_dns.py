"""The name server speaks DNS over UDP and TCP, and asks upstream what is not the cluster's."""

import asyncio
import json
import subprocess
import sys

import pytest
from dnslib import EDNS0, QTYPE, RCODE, RR, A, DNSRecord

from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.network.fair_shares import PodNamespaces

from .fake_informer import FakeInformer, endpoint, service, slice_of
from .network_namespace import in_network_namespace, mount

WEB = "web.default.svc.cluster.local"


class Site:
    """A zone whose watches a test can change."""

    def __init__(self):
        self.services = FakeInformer(
            service("web", cluster_ip="10.96.0.20", ports=[("http", 80, "TCP")]),
            service("many"),
            service("out", cluster_ip=None, type="ExternalName", externalName="data.example.org"),
            service("alias", cluster_ip=None, type="ExternalName", externalName=WEB),
            service(
                "loop", cluster_ip=None, type="ExternalName", externalName="loop.default.svc.cluster.local"
            ),
        )
        endpoints = [endpoint(f"10.244.1.{number}", hostname=f"many-{number}") for number in range(1, 101)]
        self.slices = FakeInformer(slice_of("many", *endpoints))
        self.zone = Zone(services=self.services, slices=self.slices, pods=FakeInformer())


@pytest.fixture
def site():
    return Site()


@pytest.fixture
async def port(site):
    async with DnsServer(site.zone) as server:
        yield await server.listen("127.0.0.1", 0)


class Client(asyncio.DatagramProtocol):
    """Send one packet and wait for one."""

    def __init__(self):
        self.packet = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, _address):
        self.packet.set_result(data)


async def exchange(port, packet, tcp=False):
    if tcp:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(packet).to_bytes(2) + packet)
        answer = await asyncio.wait_for(reader.readexactly(int.from_bytes(await reader.readexactly(2))), 10)
        writer.close()
        return answer
    transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
        Client, remote_addr=("127.0.0.1", port)
    )
    transport.sendto(packet)
    try:
        return await asyncio.wait_for(client.packet, 10)
    finally:
        transport.close()


async def resolve(port, name, kind="A", *, tcp=False, room=None):
    question = DNSRecord.question(name, kind)
    if room:
        question.add_ar(EDNS0(udp_len=room))
    return DNSRecord.parse(await exchange(port, question.pack(), tcp))


def values(answer):
    return [str(record.rdata) for record in answer.rr]


async def test_a_service_resolves_whatever_the_case_of_its_letters(port):
    answer = await resolve(port, "Web.default.SVC.cluster.local")
    assert values(answer) == ["10.96.0.20"]
    assert str(answer.rr[0].rname) == "Web.default.SVC.cluster.local."
    assert (answer.header.aa, answer.header.ra, answer.rr[0].ttl) == (1, 1, 5)


async def test_nobody_may_cache_a_denial(port):
    answer = await resolve(port, "ddp-0.ddp.default.svc.cluster.local")
    assert answer.header.rcode == RCODE.NXDOMAIN
    (authority,) = answer.auth
    assert (authority.rtype, authority.ttl, authority.rdata.times[-1]) == (QTYPE.SOA, 0, 0)


async def test_a_change_is_answered_at_once_although_answers_are_remembered(port, site):
    for _ in range(2):
        assert values(await resolve(port, WEB)) == ["10.96.0.20"]
    site.services.put(service("web", cluster_ip="10.96.0.21"))
    assert values(await resolve(port, WEB)) == ["10.96.0.21"]
    site.services.drop("default", "web")
    assert (await resolve(port, WEB)).header.rcode == RCODE.NXDOMAIN


async def test_a_long_answer_is_truncated_over_udp_and_whole_over_tcp(port):
    name = "many.default.svc.cluster.local"
    short = await resolve(port, name)
    assert (short.header.tc, short.rr, str(short.q.qname)) == (1, [], f"{name}.")
    assert len((await resolve(port, name, tcp=True)).rr) == 100
    assert len((await resolve(port, name, room=4096)).rr) == 100


async def test_addresses_of_a_headless_service_come_in_changing_order(port):
    orders = {
        tuple(values(await resolve(port, "many.default.svc.cluster.local", tcp=True))) for _ in range(5)
    }
    assert len(orders) > 1


async def test_an_alias_inside_the_cluster_is_followed_and_a_circle_ends(port):
    assert values(await resolve(port, "alias.default.svc.cluster.local")) == [f"{WEB}.", "10.96.0.20"]
    assert set(values(await resolve(port, "loop.default.svc.cluster.local"))) == {
        "loop.default.svc.cluster.local."
    }


async def test_without_an_upstream_foreign_names_fail(port):
    assert (await resolve(port, "example.org")).header.rcode == RCODE.SERVFAIL


@pytest.mark.parametrize(
    "packet",
    [b"", b"\x00", b"\xff" * 11, b"\x12\x34\x81\x80" + bytes(8), b"\x12\x34\x01\x00\x00\x01" + b"\xff" * 40],
)
async def test_rubbish_does_not_disturb(port, packet):
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Client, remote_addr=("127.0.0.1", port)
    )
    transport.sendto(packet)
    assert values(await resolve(port, WEB)) == ["10.96.0.20"]
    transport.close()


async def test_an_operation_other_than_a_query_is_not_implemented(port):
    question = DNSRecord.question(WEB)
    question.header.opcode = 2
    assert DNSRecord.parse(await exchange(port, question.pack())).header.rcode == RCODE.NOTIMP


RESOLVER = """nameserver 10.244.0.1
search default.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
"""
LOOK_UP = "import json, socket, sys; print(json.dumps(socket.gethostbyname_ex(sys.argv[1])[2]))"


@in_network_namespace
async def test_the_system_s_resolver_finds_short_names_as_in_a_pod(tmp_path):
    (tmp_path / "resolv.conf").write_text(RESOLVER)
    mount("--bind", tmp_path / "resolv.conf", "/etc/resolv.conf")
    outside = Outside()
    await outside.listen("10.244.255.254", 53)

    async def look_up(name):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOOK_UP, name, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, errors = await asyncio.wait_for(process.communicate(), 20)
        return json.loads(out) if out else errors.decode().splitlines()[-1]

    namespaces = PodNamespaces()
    namespaces.add("10.244.0.1", "default")
    upstreams = [("10.244.255.254", 53)]
    async with DnsServer(Site().zone, upstreams=upstreams, namespaces=namespaces) as server:
        await server.listen("10.244.0.1", 53)
        for name in ("web", "web.default", "web.default.svc", WEB):
            assert await look_up(name) == ["10.96.0.20"]
        assert await look_up("many-7.many") == ["10.244.1.7"]
        assert len(await look_up("many")) == 100
        assert "Name or service not known" in await look_up("many-7000.many")
        assert await look_up("example.org") == ["192.0.2.1"]
        assert set(outside.asked) == {"example.org."}


class Outside(asyncio.DatagramProtocol):
    """A name server of the world: answers 192.0.2.1 (TC over UDP for ``long``), or is silent."""

    def __init__(self, silent=False):
        self.asked = []
        self.silent = silent

    def connection_made(self, transport):
        self.transport = transport

    def answer(self, packet, tcp):
        question = DNSRecord.parse(packet)
        self.asked.append(str(question.q.qname))
        reply = question.reply(aa=0)
        if str(question.q.qname).startswith("long") and not tcp:
            reply.header.tc = 1
            return reply.pack()
        reply.add_answer(RR(question.q.qname, QTYPE.A, rdata=A("192.0.2.1"), ttl=300))
        return reply.pack()

    def datagram_received(self, data, address):
        if self.silent:
            self.asked.append(data)
        else:
            self.transport.sendto(self.answer(data, tcp=False), address)

    async def stream(self, reader, writer):
        packet = self.answer(await reader.readexactly(int.from_bytes(await reader.readexactly(2))), tcp=True)
        writer.write(len(packet).to_bytes(2) + packet)
        writer.close()

    async def listen(self, host="127.0.0.1", port=0):
        self.server = await asyncio.start_server(self.stream, host, port)
        port = self.server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        return port

    def close(self):
        self.transport.close()
        self.server.close()


@pytest.fixture
async def outside():
    server = Outside()
    server.port = await server.listen()
    yield server
    server.close()


@pytest.fixture
async def connected(site, outside):
    async with DnsServer(site.zone, upstreams=[("127.0.0.1", outside.port)]) as server:
        yield await server.listen("127.0.0.1", 0)


async def test_foreign_names_are_asked_upstream(connected, outside):
    answer = await resolve(connected, "example.org")
    assert (values(answer), answer.header.aa) == (["192.0.2.1"], 0)
    assert set(outside.asked) == {"example.org."}


async def test_names_of_the_cluster_never_leave_it(connected, outside):
    for name in (
        "example.org.default.svc.cluster.local",
        "example.org.cluster.local",
        "9.9.244.10.in-addr.arpa",
    ):
        assert (await resolve(connected, name)).header.rcode == RCODE.NXDOMAIN
    assert outside.asked == []


async def test_an_answer_too_long_for_udp_is_requested_over_tcp(connected):
    assert (await resolve(connected, "long.example.org")).header.tc == 1
    assert values(await resolve(connected, "long.example.org", tcp=True)) == ["192.0.2.1"]


async def test_an_external_name_is_resolved_to_its_end(connected):
    assert values(await resolve(connected, "out.default.svc.cluster.local")) == [
        "data.example.org.",
        "192.0.2.1",
    ]


async def test_a_silent_upstream_costs_patience_once(site):
    silent = Outside(silent=True)
    port = await silent.listen()
    async with DnsServer(site.zone, upstreams=[("127.0.0.1", port)]) as server:
        own_port = await server.listen("127.0.0.1", 0)
        assert (await resolve(own_port, "example.org")).header.rcode == RCODE.SERVFAIL
        patient = len(silent.asked)
        assert (await resolve(own_port, "example.com")).header.rcode == RCODE.SERVFAIL
        assert len(silent.asked) - patient < patient
        assert values(await resolve(own_port, WEB)) == ["10.96.0.20"]
    silent.close()


async def test_after_a_refusing_upstream_the_next_is_asked(site, outside):
    async with DnsServer(site.zone, upstreams=[("127.0.0.1", 9), ("127.0.0.1", outside.port)]) as server:
        own_port = await server.listen("127.0.0.1", 0)
        assert values(await resolve(own_port, "example.org")) == ["192.0.2.1"]
