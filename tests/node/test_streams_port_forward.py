"""``kubectl port-forward``, through the real API server, by WebSockets, and by SPDY as older clients do."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from .clusters import PATIENCE, RunningCluster, eventually, pod, python

# Echoes what it gets, on localhost alone, and says so at the end of the input.
SERVER = """
import socket, threading
def serve(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.sendall(b"end")
def listen(family, address):
    with socket.create_server((address, 7000), family=family) as listener:
        print("listening", flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
listen(socket.AF_INET, "127.0.0.1")
"""


@pytest.fixture(autouse=True, params=["true", "false"], ids=["WebSocket", "SPDY"])
def transport(request, monkeypatch):
    """How kubectl forwards; where a WebSocket is refused, it would take SPDY by itself."""
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", request.param)


@pytest.fixture(scope="module")
def target(cluster):
    """The name of a pod with a server on its localhost."""
    cluster.core.create_namespaced_pod("default", pod(name="forwarded", main=python(SERVER)))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/forwarded", f"--timeout={PATIENCE}s")
    eventually(lambda: cluster.kubectl("logs", "forwarded"), expected="listening\n")
    yield "forwarded"
    cluster.kubectl("delete", "pod", "forwarded", "--now")


@contextlib.contextmanager
def forwarding(cluster: RunningCluster, *words: str) -> Iterator[tuple[int, subprocess.Popen]]:
    """Yield the local port of a ``kubectl port-forward``."""
    command = cluster.kubectl_command("port-forward", "--address=127.0.0.1", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as kubectl:
        try:
            line = kubectl.stdout.readline()
            match = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert match, line + kubectl.stderr.read()
            yield int(match[1]), kubectl
        finally:
            kubectl.kill()


def exchange(port: int, data: bytes) -> bytes:
    """Send data and our end of the connection, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        sending = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(1)))
        sending.start()
        received = b"".join(iter(lambda: connection.recv(65536), b""))
        sending.join()
    return received


def test_bytes_come_back_whole_and_each_half_of_a_connection_has_its_own_end(cluster, target):
    data = os.urandom(3_000_000)
    with forwarding(cluster, target, ":7000") as (port, _):
        assert exchange(port, data) == data + b"end"
        assert exchange(port, b"again") == b"againend"


def test_many_connections_do_not_mix(cluster, target):
    with forwarding(cluster, f"pod/{target}", ":7000") as (port, _):
        sent = {number: os.urandom(20_000) for number in range(30)}
        got = {}
        threads = [
            threading.Thread(target=lambda n=number: got.update({n: exchange(port, sent[n])}))
            for number in sent
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {number: data + b"end" for number, data in sent.items()}


def test_a_port_without_a_server_is_said_to_refuse(cluster, target):
    with forwarding(cluster, target, ":7999") as (port, kubectl):
        with contextlib.suppress(ConnectionResetError):  # it may end before it has read that
            assert exchange(port, b"hello") == b""
        assert kubectl.wait(PATIENCE) == 1
        errors = kubectl.stderr.read()
    assert "failed to connect to localhost:7999 inside the pod: connection refused" in errors
    assert target in errors


def test_connections_end_with_kubectl(cluster, target):
    with forwarding(cluster, target, ":7000") as (port, kubectl):
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        assert established(cluster, target) == 2
        kubectl.send_signal(signal.SIGKILL)
    eventually(lambda: established(cluster, target), expected=0)
    connection.close()


def established(cluster: RunningCluster, name: str) -> int:
    """Count both ends of the connections to the server's port, in the pod's network."""
    table = cluster.kubectl("exec", name, "--", "cat", "/proc/net/tcp")
    return sum(":1B58 " in line and line.split()[3] == "01" for line in table.splitlines())


def test_forwarding_to_a_pod_that_is_deleted_ends_the_connection(cluster, pods):
    name = pods.create(pod(main=python(SERVER)))
    pods.wait_for_line(name, "listening")
    with forwarding(cluster, name, ":7000") as (port, _):
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        cluster.kubectl("delete", "pod", name, "--now")
        assert connection.recv(1) == b""
        connection.close()
