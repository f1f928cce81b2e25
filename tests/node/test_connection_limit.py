"""A pod's connections at the API server's own address, and the deadline of a handshake with a kubelet."""

import asyncio
import socket
import ssl

import pytest

from localkube.kubelet.http_server import server as http_server
from localkube.kubelet.http_server.server import KubeletServer
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.network.connection_limit import ConnectionLimit

from .network_namespace import in_network_namespace
from .tls import Authority


@in_network_namespace
async def test_connections_of_an_address_beyond_its_share_are_reset_and_others_stay():
    listener = socket.create_server(("10.244.0.1", 6443))
    connections = {address: [] for address in ("10.244.0.1", "10.244.1.2", "10.244.1.3", "127.0.0.1")}
    for address, clients in connections.items():
        await run("ip", "address", "add", f"{address}/16", "dev", "lo") if address[-1] in "23" else None
        for _ in range(9):
            client = socket.create_connection(("10.244.0.1", 6443), source_address=(address, 0))
            clients.append((client, listener.accept()[0]))
    connections["10.244.1.3"] = connections["10.244.1.3"][:5]  # the rest is closed
    ConnectionLimit(port=6443, network="10.244.0.0/16", limit=5).enforce(besides="10.244.0.1")
    assert {address: sum(map(is_open, clients)) for address, clients in connections.items()} == {
        "10.244.0.1": 9,
        "10.244.1.2": 5,
        "10.244.1.3": 5,
        "127.0.0.1": 9,
    }


async def run(*command):
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0


def is_open(pair):
    client, _ = pair
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.fixture
async def server(tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.2)
    authority = Authority(tmp_path, "ca")
    serving = authority.issue("node")

    async def serve(**settings):
        server = KubeletServer(
            None,
            files=LogFiles(),
            cert_file=serving.cert,
            key_file=serving.key,
            client_ca_file=authority.cert,
            **settings,
        )
        return server, authority

    return serve


async def test_a_client_that_never_shakes_hands_is_closed_and_leaves_room_for_others(server):
    kubelet, authority = await server()
    async with kubelet:
        port = await kubelet.listen("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * http_server.HANDSHAKES)]
        tls = ssl.create_default_context(cafile=authority.cert)
        known = authority.issue("kube-apiserver-kubelet-client")
        tls.load_cert_chain(known.cert, known.key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()
        for silent_reader, silent_writer in silent:
            assert await silent_reader.read() == b""
            silent_writer.close()


async def test_an_address_that_does_not_need_the_kubelet_is_reset_at_once(server):
    kubelet, _ = await server(clients=["10.244.0.1"])
    async with kubelet:
        port = await kubelet.listen("127.0.0.1", 0)
        with pytest.raises(ConnectionError):
            reader, _ = await asyncio.open_connection("127.0.0.1", port)
            await reader.readexactly(1)
