"""A Service's address leads to its ready endpoints, in a network like the site's."""

import asyncio
import contextlib
import hashlib
import os
import socket

import pytest

from localkube.network.service_proxy import ServiceProxy

from .fake_informer import FakeInformer, endpoint, service, slice_of
from .network_namespace import in_network_namespace

IP = "10.96.7.7"
WEB = [("http", 80, "TCP")]


class Backend:
    """A TCP server in place of a pod; says its name, then echoes."""

    def __init__(self, address, port=8080):
        self.address, self.port = address, port
        self.seen = 0

    async def __aenter__(self):
        # As many may wait as a test has clients: another endpoint is tried where one does not answer at once.
        self.server = await asyncio.start_server(self.handle, self.address, self.port, backlog=512)
        return self

    async def __aexit__(self, *exc):
        self.server.close()

    async def handle(self, reader, writer):
        self.seen += 1
        writer.write(self.address.encode() + b"\n")
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye\n")
            writer.write_eof()
        writer.close()


class Cluster:
    """Watches with one Service, ``web``, and a proxy over them."""

    def __init__(self, *addresses, ports=WEB, **spec):
        self.services = FakeInformer(service("web", cluster_ip=IP, ports=ports, **spec))
        self.slices = FakeInformer()
        self.point_to(*addresses)

    def point_to(self, *addresses, **conditions):
        ports = [("http", 8080, "TCP"), ("dns", 5353, "UDP")]
        self.slices.put(slice_of("web", *(endpoint(a, **conditions) for a in addresses), ports=ports))

    def proxy(self):
        return ServiceProxy(services=self.services, slices=self.slices)


async def greeting(source=None):
    local = (source, 0) if source else None
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(IP, 80, local_addr=local)
        try:
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()


async def settle():
    for _ in range(3):
        await asyncio.sleep(0)


@in_network_namespace
async def test_connections_go_to_the_endpoints_in_turn():
    cluster = Cluster("10.244.1.2", "10.244.2.2", "10.244.3.2")
    async with Backend("10.244.1.2"), Backend("10.244.2.2"), Backend("10.244.3.2"), cluster.proxy():
        assert [await greeting() for _ in range(6)] == ["10.244.1.2", "10.244.2.2", "10.244.3.2"] * 2


@in_network_namespace
async def test_a_client_with_affinity_keeps_its_endpoint_until_that_is_gone():
    cluster = Cluster("10.244.1.2", "10.244.2.2", sessionAffinity="ClientIP")
    async with Backend("10.244.1.2"), Backend("10.244.2.2"), cluster.proxy():
        first = {await greeting("10.244.9.1") for _ in range(4)}
        second = {await greeting("10.244.9.2") for _ in range(4)}
        assert len(first) == len(second) == 1
        assert first != second
        (left,) = second
        cluster.point_to(left)
        await settle()
        assert {await greeting("10.244.9.1") for _ in range(4)} == second


@in_network_namespace
async def test_without_endpoints_a_connection_is_refused_and_with_one_again_accepted():
    cluster = Cluster()
    async with Backend("10.244.1.2"), cluster.proxy():
        with pytest.raises(ConnectionRefusedError):
            await greeting()
        cluster.point_to("10.244.1.2")
        await settle()
        assert await greeting() == "10.244.1.2"
        cluster.point_to("10.244.1.2", ready=False)
        await settle()
        with pytest.raises(ConnectionRefusedError):
            await greeting()
        cluster.services.drop("default", "web")
        await settle()


@in_network_namespace
async def test_an_established_connection_outlives_its_endpoint_and_its_service():
    cluster = Cluster("10.244.1.2")
    async with Backend("10.244.1.2"), cluster.proxy():
        reader, writer = await asyncio.open_connection(IP, 80)
        assert await reader.readline() == b"10.244.1.2\n"
        cluster.point_to()
        cluster.services.drop("default", "web")
        await settle()
        with pytest.raises(ConnectionRefusedError):
            await greeting()
        writer.write(b"still there\n")
        assert await asyncio.wait_for(reader.readline(), 30) == b"still there\n"
        writer.close()


@in_network_namespace
async def test_an_endpoint_that_refuses_is_passed_over():
    cluster = Cluster("10.244.1.2", "10.244.2.2")
    async with Backend("10.244.2.2"), cluster.proxy():
        assert [await greeting() for _ in range(3)] == ["10.244.2.2"] * 3


@in_network_namespace
async def test_when_no_endpoint_takes_it_the_client_is_reset():
    cluster = Cluster("10.244.1.2", "10.244.2.2")
    async with cluster.proxy():
        with pytest.raises(ConnectionResetError):
            await greeting()


@in_network_namespace
async def test_one_end_of_data_leaves_the_other_direction_open():
    cluster = Cluster("10.244.1.2")
    async with Backend("10.244.1.2"), cluster.proxy():
        reader, writer = await asyncio.open_connection(IP, 80)
        writer.write(b"all I have to say\n")
        writer.write_eof()
        async with asyncio.timeout(5):
            assert await reader.read() == b"10.244.1.2\nall I have to say\nbye\n"
        writer.close()


@in_network_namespace
async def test_a_reset_is_passed_on_as_a_reset():
    resets = asyncio.get_running_loop().create_future()

    async def handle(reader, writer):
        try:
            await reader.read()
            resets.set_result(None)
        except ConnectionError as error:
            resets.set_result(error)
        writer.close()

    server = await asyncio.start_server(handle, "10.244.1.2", 8080)
    async with Cluster("10.244.1.2").proxy():
        reader, writer = await asyncio.open_connection(IP, 80)
        writer.write(b"x")
        await asyncio.sleep(0.05)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        assert isinstance(await asyncio.wait_for(resets, 30), ConnectionResetError)
    server.close()


@in_network_namespace
async def test_a_slow_reader_slows_the_writer_and_nothing_is_lost():
    sent = os.urandom(1 << 20) * 48
    sent_bytes = 0

    async def handle(reader, writer):
        nonlocal sent_bytes
        for start in range(0, len(sent), 1 << 20):
            writer.write(sent[start : start + (1 << 20)])
            await writer.drain()
            sent_bytes = start + (1 << 20)
        writer.close()

    server = await asyncio.start_server(handle, "10.244.1.2", 8080)
    async with Cluster("10.244.1.2").proxy():
        reader, writer = await asyncio.open_connection(IP, 80)
        writer.transport.pause_reading()
        await asyncio.sleep(0.5)
        assert sent_bytes < len(sent) / 2
        writer.transport.resume_reading()
        received = hashlib.sha256(await asyncio.wait_for(reader.read(), 30)).digest()
        assert received == hashlib.sha256(sent).digest()
        writer.close()
    server.close()


class Echo(asyncio.DatagramProtocol):
    """A UDP server in place of a pod: answers with its address and what it got."""

    def __init__(self, address):
        self.address = address

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, client):
        self.transport.sendto(self.address.encode() + b" " + data, client)


@in_network_namespace
async def test_datagrams_of_a_client_stay_with_one_endpoint_while_it_is_ready():
    loop = asyncio.get_running_loop()
    cluster = Cluster("10.244.1.2", "10.244.2.2", ports=[("dns", 53, "UDP")])
    for address in ("10.244.1.2", "10.244.2.2"):
        await loop.create_datagram_endpoint(lambda a=address: Echo(a), local_addr=(address, 5353))
    async with cluster.proxy():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as client:
            client.connect((IP, 53))

            async def echo():
                await loop.sock_sendall(client, b"?")
                return await asyncio.wait_for(loop.sock_recv(client, 100), 30)

            assert {await echo() for _ in range(4)} == {b"10.244.1.2 ?"}
            cluster.point_to("10.244.2.2")
            await settle()
            assert {await echo() for _ in range(4)} == {b"10.244.2.2 ?"}


@in_network_namespace
async def test_a_terminating_endpoint_serves_only_while_no_other_does():
    cluster = Cluster()
    leaving = endpoint("10.244.1.2", ready=False, serving=True, terminating=True)
    ports = [("http", 8080, "TCP")]
    async with Backend("10.244.1.2"), Backend("10.244.2.2"), cluster.proxy():
        cluster.slices.put(slice_of("web", leaving, ports=ports))
        await settle()
        assert await greeting() == "10.244.1.2"
        cluster.slices.put(slice_of("web", leaving, endpoint("10.244.2.2"), ports=ports))
        await settle()
        assert {await greeting() for _ in range(3)} == {"10.244.2.2"}


@in_network_namespace
async def test_an_address_may_move_to_another_service():
    cluster = Cluster("10.244.1.2")
    ports = [("http", 8080, "TCP")]
    async with Backend("10.244.1.2"), Backend("10.244.2.2"), cluster.proxy():
        for name in ("api", "zoo", "web"):
            old = next(iter(cluster.services.store.values()))["metadata"]["name"]
            cluster.services.drop("default", old)
            cluster.services.put(service(name, cluster_ip=IP, ports=WEB))
            cluster.slices.put(slice_of(name, endpoint("10.244.2.2"), ports=ports))
            await settle()
            assert await greeting() == "10.244.2.2"


@in_network_namespace
async def test_a_service_that_is_its_own_endpoint_does_not_go_round():
    cluster = Cluster()
    cluster.slices.put(slice_of("web", endpoint(IP), ports=[("http", 80, "TCP")]))
    async with cluster.proxy():
        with pytest.raises(ConnectionRefusedError):
            await greeting()


@in_network_namespace
async def test_headless_services_and_other_protocols_are_left_alone():
    cluster = Cluster("10.244.1.2", ports=[("sctp", 80, "SCTP")])
    cluster.services.put(service("headless", ports=WEB))
    cluster.services.put(service("out", cluster_ip=None, type="ExternalName", externalName="example.org"))
    async with cluster.proxy() as proxy:
        assert proxy._fronts == {}


async def test_without_a_site_a_service_can_be_placed_elsewhere():
    cluster = Cluster("127.0.0.1")
    cluster.slices.put(slice_of("web", endpoint("127.0.0.1"), ports=[("http", 0, "TCP")]))
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cluster.slices.put(slice_of("web", endpoint("127.0.0.1"), ports=[("http", port, "TCP")]))
    async with ServiceProxy(
        services=cluster.services, slices=cluster.slices, place=lambda ip, port: ("127.0.0.1", 0)
    ) as proxy:
        reader, _ = await asyncio.open_connection(*proxy.address(IP, 80))
        assert await asyncio.wait_for(reader.read(), 30) == b""
    server.close()


async def test_an_address_that_cannot_be_taken_is_said_once(caplog):
    cluster = Cluster("127.0.0.1")
    async with cluster.proxy():
        cluster.point_to("127.0.0.1")
        await settle()
    assert [record.message for record in caplog.records] == [
        "Service default/web: cannot listen on 10.96.7.7:80: Cannot assign requested address"
    ]
