"""What all namespaces share: a greedy one keeps nobody else waiting for more than a second.

Each test lets a greedy client take all that it gets, and then looks at what another one gets meanwhile.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest
from dnslib import QTYPE, RR, A, DNSRecord

from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images import image_manager
from localkube.kubelet.images.image_manager import ImageManager
from localkube.network import fair_shares
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.network.fair_datagrams import FairDatagrams
from localkube.network.fair_shares import Allowances, PodNamespaces, RelayLimits, Shares
from localkube.network.service_proxy import ServiceProxy
from localkube.runtime.syscalls import die_with_parent

from ..node.fake_informer import FakeInformer, endpoint, service, slice_of
from ..node.network_namespace import in_network_namespace

ADA, ADA_TOO, BOB = "10.244.1.9", "10.244.2.9", "10.244.1.10"
GREEDY, PATIENCE = (ADA, ADA_TOO), 1.0
IP, DESCRIPTORS = "10.96.7.7", 1024
PORTS = [(f"p{number}", 5000 + number, "UDP") for number in range(8)]


def two_namespaces():
    namespaces = PodNamespaces()
    for address in GREEDY:
        namespaces.add(address, "ada")
    namespaces.add(BOB, "bob")
    return namespaces


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_gateway_finds_the_latest_namespace_of_an_address(tmp_path, monkeypatch):
    monkeypatch.setattr(fair_shares, "MAX_ADDED", 2)
    file, times, sizes = tmp_path / "namespaces", set(), []
    file.write_text("10.244.9.9 of-an-earlier-kubelet\n")
    namespaces = PodNamespaces(file)
    for address, namespace in ((ADA, "ada"), (BOB, "bob"), (BOB, "bob"), (ADA, "eve"), (BOB, "ada")):
        namespaces.add(address, namespace)
        lines = [line.split() for line in file.read_text().splitlines()]
        assert dict(lines)[address] == namespaces.of(address) == namespace
        times.add(file.stat().st_mtime_ns)
        sizes.append(len(lines))
    assert (len(times), sizes) == (4, [1, 2, 2, 3, 2])


# Counts.


def test_a_namespace_and_a_client_have_their_shares_and_the_others_have_theirs():
    shares = Shares(16, two_namespaces())
    of_ada = [shares.acquire(ADA) for _ in range(3)]
    assert of_ada[1] and not of_ada[2]
    of_ada += [shares.acquire(ADA_TOO) for _ in range(3)]
    assert [bool(holding) for holding in of_ada] == [True, True, False, True, True, False]
    assert shares.acquire(BOB)
    for _ in range(2):  # harmless when repeated
        shares.release(of_ada[0])
    assert shares.acquire(ADA) and not shares.acquire(ADA)


def test_a_client_ends_its_own_oldest_for_a_new_one_and_nobody_else_s():
    shares, ended = Shares(16, two_namespaces()), []

    def take(client, name):
        def end():
            ended.append(name)
            shares.release(holding)

        holding = shares.acquire(client, end)
        return holding

    assert take(BOB, "bob's") and all(take(ADA, name) for name in ("first", "second", "third"))
    assert ended == ["first"]


def test_an_allowance_is_a_namespace_s_and_grows_again():
    now = [0.0]
    allowances = Allowances(two_namespaces(), refill=0.1, burst=1.0, clock=lambda: now[0])
    assert allowances.spend(ADA, 0.6) and not allowances.spend(ADA_TOO, 0.6)
    assert allowances.spend(BOB, 0.6)
    now[0] = 5.0
    assert allowances.spend(ADA, 0.1)


# Services.


def lower_descriptor_limit():
    """Lower the limit of this process, which `in_network_namespace` started for one test."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def relayed(protocol):
    """Yield informers with a Service ``web`` whose endpoint is a pod, and the proxy's limits."""
    ports = [(name, number, protocol) for name, number, _ in PORTS]
    services = FakeInformer(service("web", cluster_ip=IP, ports=ports))
    slices = FakeInformer(slice_of("web", endpoint("10.244.3.3"), ports=ports))
    return ServiceProxy(services=services, slices=slices, limits=RelayLimits.of_process(two_namespaces()))


def client_socket(address, kind=socket.SOCK_DGRAM):
    new_socket = socket.socket(socket.AF_INET, kind)
    new_socket.setblocking(False)
    new_socket.bind((address, 0))
    return new_socket


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def is_echoed(client, port):
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await loop.sock_sendto(client, b"hello", (IP, port))
            while await loop.sock_recv(client, 100) != b"hello":
                pass
            return True
    return False


@in_network_namespace
async def test_datagrams_from_thousands_of_ports_leave_descriptors_and_flows_for_others():
    loop = asyncio.get_running_loop()
    flood = [client_socket(address) for address in GREEDY for _ in range(100)]
    lower_descriptor_limit()
    for _, port, _ in PORTS:
        await loop.create_datagram_endpoint(Echo, local_addr=("10.244.3.3", port))
    async with relayed("UDP"):
        before = open_files()
        for client in flood:
            for _, port, _ in PORTS:
                client.sendto(b"x", (IP, port))
            await asyncio.sleep(0)
        assert open_files() - before <= (DESCRIPTORS - before) / 2
        with client_socket(BOB) as bob:
            assert await is_echoed(bob, PORTS[0][1])
        assert await is_echoed(flood[-1], PORTS[0][1])  # its newest flow, for an old one of its own


@in_network_namespace
async def test_connections_that_one_pod_holds_leave_some_for_others():
    async def hello(reader, writer):
        writer.write(b"hello")
        await reader.read()
        writer.close()

    async def greeted(address):
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection(IP, 5000, local_addr=(address, 0))
                connections.append(writer)
                return await reader.readexactly(5) == b"hello"
        except (OSError, asyncio.IncompleteReadError):
            return False

    connections = []
    server = await asyncio.start_server(hello, "10.244.3.3", 5000)
    lower_descriptor_limit()
    async with server, relayed("TCP"):
        greetings = [await greeted(ADA) for _ in range(40)]
        assert greetings[0] and not greetings[-1]
        assert await greeted(BOB)
        connections[0].close()
        await connections[0].wait_closed()
        async with asyncio.timeout(10):
            while not await greeted(ADA):
                pass


@in_network_namespace
async def test_when_no_descriptor_is_left_flows_are_refused_and_later_ones_are_carried():
    async def hello(reader, writer):
        writer.write(b"hello")
        writer.close()

    async def greeted(client):
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5 * PATIENCE):
                await loop.sock_connect(client, (IP, 5000))
                return await loop.sock_recv(client, 5) == b"hello"
        return False

    clients = [client_socket(BOB, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM) * 2]
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=("10.244.3.3", 5000))
    server = await asyncio.start_server(hello, "10.244.3.3", 5000)
    async with server, relayed("UDP"), relayed("TCP"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        assert not await is_echoed(clients[0], 5000)
        waiting = asyncio.create_task(greeted(clients[1]))
        await asyncio.sleep(0.1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await is_echoed(clients[2], 5000)
        assert await greeted(clients[3])
        await waiting


@in_network_namespace
async def test_a_service_with_very_many_ports_leaves_listeners_for_others():
    services, slices = FakeInformer(), FakeInformer()
    many = [(f"p{number}", 1000 + number, "TCP") for number in range(2000)]
    for namespace, ip, ports in (("ada", IP, many), ("bob", "10.96.7.8", many[:1])):
        services.put(service("web", namespace=namespace, cluster_ip=ip, ports=ports))
        slices.put(slice_of("web", endpoint("10.244.3.3"), namespace=namespace, ports=ports))
    lower_descriptor_limit()
    limits = RelayLimits.of_process(two_namespaces())
    async with ServiceProxy(services=services, slices=slices, limits=limits) as proxy:
        assert open_files() < DESCRIPTORS / 2
        assert proxy.address("10.96.7.8", 1000)
        waiting = asyncio.get_running_loop()._scheduled
        assert len([timer for timer in waiting if not timer.cancelled()]) < 10  # it tries again, once


# DNS.


def zone():
    return Zone(
        services=FakeInformer(service("web", cluster_ip=IP)), slices=FakeInformer(), pods=FakeInformer()
    )


@contextlib.contextmanager
def flooding(address, name):
    """Ask for names without end, from a process of its own, as fast as the kernel takes it."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        with client_socket(address) as sender:
            sender.setblocking(True)
            question = bytearray(DNSRecord.question(name).pack())
            for number in range(1 << 40):
                question[:2] = (number % 65536).to_bytes(2)
                question[13:21] = f"{number % 10**8:08}".encode()
                with contextlib.suppress(OSError):
                    sender.sendto(question, ("10.244.0.1", 53))
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def longest_wait(address, name, *, times):
    """Ask a question again and again, and measure the longest wait; a lost one is not repeated."""
    loop, longest = asyncio.get_running_loop(), 0.0
    for _ in range(times):
        with client_socket(address) as client:
            began = time.monotonic()
            await loop.sock_sendto(client, DNSRecord.question(name).pack(), ("10.244.0.1", 53))
            try:
                async with asyncio.timeout(5 * PATIENCE):
                    await loop.sock_recv(client, 512)
            except TimeoutError:
                return float("inf")
            longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.02)
    return longest


@in_network_namespace
async def test_a_namespace_pays_for_no_time_in_which_other_processes_have_the_cores():
    loop, allowances = asyncio.get_running_loop(), Allowances(two_namespaces(), burst=0.1)

    def answer(data, client, reply):
        time.sleep(0.2)  # of a question's time, most is others'
        reply(data)

    server = FairDatagrams("10.244.0.1", 53, handle=answer, allowances=allowances)
    with contextlib.closing(server), client_socket(BOB) as bob:
        for _ in range(3):
            await loop.sock_sendto(bob, b"hello", ("10.244.0.1", 53))
            async with asyncio.timeout(PATIENCE):
                assert await loop.sock_recv(bob, 5) == b"hello"


@in_network_namespace
async def test_a_flood_of_questions_keeps_nobody_else_waiting():
    before = open_files()
    async with DnsServer(zone(), namespaces=two_namespaces()) as server:
        await server.listen("10.244.0.1", 53)
        name = "xxxxxxxx.web.default.svc.cluster.local"
        with flooding(ADA, name), flooding(ADA_TOO, name):
            longest = await longest_wait(BOB, "web.default.svc.cluster.local", times=100)
        assert longest < PATIENCE
        assert open_files() - before < 100


class SlowForAda(asyncio.DatagramProtocol):
    """A name server outside that answers ``fast.example`` and nothing else."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        question = DNSRecord.parse(data)
        if str(question.q.qname) == "fast.example.":
            reply = question.reply()
            reply.add_answer(RR(question.q.qname, QTYPE.A, rdata=A("192.0.2.1"), ttl=1))
            self.transport.sendto(reply.pack(), address)


@in_network_namespace
async def test_names_that_nobody_answers_keep_nobody_else_s_waiting():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(SlowForAda, local_addr=("10.244.255.254", 53))
    upstreams = [("10.244.255.254", 53)]
    async with DnsServer(zone(), upstreams=upstreams, namespaces=two_namespaces()) as server:
        await server.listen("10.244.0.1", 53)
        with client_socket(ADA) as ada:
            for number in range(400):
                question = DNSRecord.question(f"{number:08}.silent.example").pack()
                with contextlib.suppress(BlockingIOError):
                    ada.sendto(question, ("10.244.0.1", 53))
                await asyncio.sleep(0)
            assert await longest_wait(BOB, "fast.example", times=3) < PATIENCE


@in_network_namespace
async def test_connections_to_the_name_server_that_one_pod_holds_leave_some_for_others():
    before = open_files()
    async with DnsServer(zone(), namespaces=two_namespaces()) as server:
        await server.listen("10.244.0.1", 53)
        connections = [
            await asyncio.open_connection("10.244.0.1", 53, local_addr=(address, 0))
            for address in GREEDY
            for _ in range(200)
        ]
        assert open_files() - before < len(connections) + 300
        reader, writer = await asyncio.open_connection("10.244.0.1", 53, local_addr=(BOB, 0))
        question = DNSRecord.question("web.default.svc.cluster.local").pack()
        writer.write(len(question).to_bytes(2) + question)
        async with asyncio.timeout(PATIENCE):
            assert await reader.readexactly(2)


# Pulls.


class SlowRegistries:
    """An image service whose pulls go on for ever, but for those of ``registry.example``."""

    def __init__(self):
        self.pulling = []

    async def pull(self, name, auths):
        self.pulling.append(name)
        if not name.startswith("registry.example/"):
            await asyncio.Event().wait()
        return {"id": "sha256:1", "size": 1}


class NoEvents:
    def record(self, *_, **__):
        pass


def pod_of(namespace, image):
    container = {"name": "main", "image": image}
    meta = {"name": "a", "namespace": namespace, "uid": f"{namespace}-{image}"}
    return {"metadata": meta, "spec": {"nodeName": "node", "containers": [container]}}, container


@pytest.fixture
def manager():
    image_manager = ImageManager(secret=None, service=SlowRegistries(), mode="pull")
    image_manager.recorders["node"] = NoEvents()
    return image_manager


async def pull(manager, namespace, name):
    return await manager._pull(*pod_of(namespace, name), name)


async def test_registries_that_drip_hold_the_pulls_of_their_own_namespace_alone(manager):
    slow = [
        asyncio.create_task(pull(manager, "ada", name))
        for name in (*(f"drip-{number}.example/a" for number in range(30)), "registry.example/tool")
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        assert await pull(manager, "bob", "registry.example/tool")
    assert len(manager._service.pulling) == image_manager.PULLS_OF_NAMESPACE + 1
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_pull_has_a_deadline(manager, monkeypatch):
    monkeypatch.setattr(image_manager, "PULL_SECONDS", 0.01)
    with pytest.raises(image_manager.PullError, match="not pulled within"):
        await pull(manager, "ada", "drip.example/a")


# Events.


class Posted:
    """An API server that keeps the namespaces of the Events that it is sent, in their order."""

    def __init__(self):
        self.namespaces = []
        self.of_bob = asyncio.Event()

    async def post(self, path, body):
        self.namespaces.append(body["metadata"]["namespace"])
        if self.namespaces[-1] == "bob":
            self.of_bob.set()


async def test_a_pod_with_thousands_of_events_delays_nobody_else_s():
    server = Posted()
    events = EventRecorder(server)
    for number in range(400):
        events.record(pod_of("ada", "image")[0], "Unhealthy", f"probe {number}")
    events.record(pod_of("bob", "image")[0], "Pulled", "an image")
    posting = asyncio.create_task(events.run())
    async with asyncio.timeout(PATIENCE):
        await server.of_bob.wait()
    assert server.namespaces.index("bob") == 1
    posting.cancel()
