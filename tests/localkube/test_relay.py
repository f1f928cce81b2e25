"""A relay between two sockets, also where the first bytes are there before it is."""

import asyncio
import socket
from asyncio import selector_events

import pytest

from localkube.network.relay import relay

pytestmark = pytest.mark.timeout(60)


def relayed(first, *, ended):
    """Send bytes before the relay begins; return what the far side reads, and what its answer becomes."""

    async def run():
        (client, near), (far, server) = socket.socketpair(), socket.socketpair()
        client.sendall(first)
        if ended:
            client.shutdown(socket.SHUT_WR)
        for connection in (client, near, far, server):
            connection.setblocking(False)
        carrying = asyncio.create_task(relay(near, far))
        loop = asyncio.get_running_loop()
        got = b""
        while len(got) < len(first):
            got += await loop.sock_recv(server, 100)
        end = await loop.sock_recv(server, 1) if ended else None
        await loop.sock_sendall(server, b"answer")
        server.shutdown(socket.SHUT_WR)
        answer = await loop.sock_recv(client, 100)
        for connection in (client, server):
            connection.close()
        await carrying
        return got, end, answer

    return asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("forgets", [False, True], ids=["", "forgets a pause as Python 3.11.2 does"])
def test_bytes_that_were_sent_before_the_relay_began_arrive(ended, forgets, monkeypatch):
    """There a transport that is paused in connection_made reads all the same."""
    if forgets:
        monkeypatch.setattr(selector_events._SelectorSocketTransport, "pause_reading", lambda self: None)
    assert relayed(b"hello", ended=ended) == (b"hello", b"" if ended else None, b"answer")


async def test_a_connection_closed_by_the_server_ends_at_the_client():
    (client, near), (far, server) = socket.socketpair(), socket.socketpair()
    for connection in (client, near, far, server):
        connection.setblocking(False)
    carrying = asyncio.create_task(relay(near, far, http=True))
    server.sendall(b"the last answer")
    server.close()
    await asyncio.wait_for(carrying, 30)
    assert (client.recv(100), client.recv(100)) == (b"the last answer", b"")
    client.close()
