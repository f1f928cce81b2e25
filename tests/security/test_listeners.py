"""What other users of the machine do to the cluster's port, and what comes of a lack of descriptors."""

import asyncio
import contextlib
import os
import resource
import socket

import psutil
import pytest

from localkube.network import accepting

from ..node.clusters import eventually
from ..node.restrictions import NOBODY
from .users import as_user

STRANGER = NOBODY - 1
IDLE = 900
OWNERS = [pytest.param(lambda local, remote: accepting.owner(local, remote), id="the kernel's table"),
          pytest.param(accepting._owner_by_proc, id="/proc/net/tcp")]  # fmt: skip

by_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


def is_answered(port):
    """Ask a port something; return whether there is an answer before the connection is closed."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except ConnectionError:
        return False


def descriptors(cluster):
    return psutil.Process(cluster.status["processes"]["supervisor"]["pid"]).num_fds()


def ready(cluster):
    return cluster.kubectl("get", "--raw", "/readyz", "--request-timeout=10s") == "ok"


@by_root
def test_another_user_gets_no_answer_and_root_and_the_clusters_own_user_do(cluster):
    port = cluster.status["api_port"]

    def check(answered):
        assert is_answered(port) is answered

    as_user(STRANGER, lambda: check(False))
    as_user(cluster.root.stat().st_uid, lambda: check(True))
    check(True)


@by_root
def test_idle_connections_of_another_user_keep_nobody_from_the_api(cluster):
    port, before = cluster.status["api_port"], descriptors(cluster)

    def occupy():
        connections = []
        for _ in range(IDLE):
            with contextlib.suppress(ConnectionError):
                connections.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""

    as_user(STRANGER, occupy)
    assert descriptors(cluster) < before + IDLE / 2
    assert ready(cluster)


def test_more_connections_than_the_usual_limit_of_descriptors_leave_the_api_ready(cluster):
    """They are of this user."""
    port = cluster.status["api_port"]
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(IDLE)]
    try:
        assert ready(cluster)
    finally:
        for connection in connections:
            connection.close()
    eventually(lambda: descriptors(cluster) < IDLE)
    assert ready(cluster)


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_owner_of_a_connection_is_found_and_that_of_a_closed_one_is_not(owner, family):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.socket(family)
        mapped = "::ffff:" if family == socket.AF_INET6 else ""
        client.connect((f"{mapped}127.0.0.1", listener.getsockname()[1]))
        accepted, peer = listener.accept()
        with accepted:
            assert owner(peer, accepted.getsockname()) == os.getuid()
            client.close()  # the kernel keeps it until the other side has closed, too, as root's
            assert owner(peer, accepted.getsockname()) is None
            assert not accepting.is_ours(accepted)


def test_a_connection_that_was_reset_before_it_was_accepted_is_nobodys():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting.reset(socket.create_connection(listener.getsockname()))
        accepted, _ = listener.accept()
        with accepted:
            assert not accepting.is_ours(accepted)


@by_root
@pytest.mark.parametrize("owner", OWNERS)
def test_another_users_connection_is_another_users(owner):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.socket() as client:
            os.fchown(client.fileno(), STRANGER, -1)
            client.connect(address)
            accepted, peer = listener.accept()
            with accepted:
                assert owner(peer, accepted.getsockname()) == STRANGER
                assert not accepting.is_ours(accepted)


def test_a_listener_without_descriptors_accepts_again_when_there_are_some():
    """In a process of its own, whose descriptors can run out."""

    def starve():
        async def run():
            served = []

            async def handle(client):
                served.append(client)

            listener = socket.create_server(("127.0.0.1", 0))
            task = asyncio.create_task(accepting.accept(listener, handle, limit=100))
            clients = [socket.create_connection(listener.getsockname()) for _ in range(20)]
            soft = clients[-1].fileno() + 5
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await asyncio.sleep(accepting.PAUSE_SECONDS)
            assert 0 < len(served) < 20
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            while len(served) < 20:
                assert not task.done(), task
                await asyncio.sleep(0.05)
            return clients

        asyncio.run(asyncio.wait_for(run(), 30))

    as_user(os.getuid(), starve)


def test_no_more_connections_are_served_at_a_time_than_said():
    async def run():
        served, done = [], asyncio.Event()

        async def handle(client):
            served.append(client)
            await done.wait()
            client.close()

        listener = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(accepting.accept(listener, handle, limit=2))
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        await asyncio.sleep(0.2)
        assert len(served) == 2
        done.set()
        await asyncio.sleep(0.2)
        assert len(served) == 5
        task.cancel()
        for connection in (*clients, listener):
            connection.close()

    asyncio.run(asyncio.wait_for(run(), 30))
