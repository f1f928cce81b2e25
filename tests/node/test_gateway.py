"""The way out of a site: what a pod reaches through the gateway, what it must not, and when a gateway ends.

A forked child plays the pod, in a network namespace of its own; the gateway and the servers are on the host.
"""

import contextlib
import hashlib
import json
import os
import select
import socket
import socketserver
import struct
import subprocess
import threading
import traceback
from pathlib import Path

import pytest

from localkube.controlplane import binaries

from .network_namespace import enter_network_namespace

GATEWAY, POD = "10.244.255.254", "10.244.1.5"
LARGE = os.urandom(1 << 20) * 8
ETH_P_ALL = 3
LINKS = (
    "address del 10.244.0.1/16 dev lo",
    "link add gateway0 type veth peer name pod0",
    "link set gateway0 up",
    f"address add {POD}/16 dev pod0",
    "link set pod0 up",
    f"route add default via {GATEWAY}",
)
LOOPBACK_OUT = ("address del 127.0.0.1/8 dev lo", f"route add 127.0.0.0/8 via {GATEWAY}")


class Large(socketserver.BaseRequestHandler):
    """Send what is large, after the client has said that it will say no more."""

    def handle(self):
        while self.request.recv(1 << 16):
            pass
        self.request.sendall(LARGE)


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        data, server = self.request
        server.sendto(data[::-1], self.client_address)


class Visited(socketserver.BaseRequestHandler):
    visits = 0

    def handle(self):
        Visited.visits += 1
        self.request.sendall(b"private")


@contextlib.contextmanager
def serving(kind, address, handler):
    server = kind((address, 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="test-server")
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_address():
    """Return this machine's address on its network, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def exchange(address, port, *, timeout=10):
    """Connect, say something, end the sending side, and return what comes back; or the error's name."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.sendall(b"hello")
            connection.shutdown(socket.SHUT_WR)
            received = bytearray()
            while chunk := connection.recv(1 << 16):
                received += chunk
            return hashlib.sha256(received).hexdigest()
    except OSError as error:
        return type(error).__name__ if type(error) is not OSError else os.strerror(error.errno)


def resolve(name, kind, *, stream=False):
    """Ask the gateway's DNS; return the reply's code and the last four bytes of each answer."""
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    query = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + question + struct.pack("!2H", kind, 1)
    with socket.socket(type=socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as to:
        to.settimeout(20)
        to.connect((GATEWAY, 53))
        to.sendall(struct.pack("!H", len(query)) + query if stream else query)
        reply = to.recv(4096)
    if stream:
        reply = reply[2:]
    _, flags, _, answers = struct.unpack("!4H", reply[:8])
    return {
        "code": flags & 15,
        "answers": answers,
        "address": socket.inet_ntoa(reply[-4:]) if answers else None,
    }


def pings(address, *, patience):
    """Send one echo request and tell whether a reply came from there."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(patience)
        # A request without data; its two other words are zero, so the checksum is the type's complement.
        raw.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0), (address, 0))
        try:
            while True:
                packet, (sender, _) = raw.recvfrom(4096)
                if sender == address and packet[20] == 0:
                    return True
        except TimeoutError:
            return False


def play_pod(host, ports):
    """Look around as a pod and return what was reached."""
    with socket.socket(type=socket.SOCK_DGRAM) as echo:
        echo.settimeout(30)
        echo.sendto(b"abc", (host, ports["udp"]))
        datagram = echo.recv(100).decode()
    results = {
        "large": exchange(host, ports["tcp"]),
        "closed": exchange(host, 9),
        "service": exchange("10.96.0.1", 443),
        "metadata": exchange("169.254.169.254", 80),
        "neighbour": exchange("10.244.9.9", 80),
        "nothing": exchange("0.0.0.1", ports["private"]),
        "datagram": datagram,
        "own name": resolve(socket.gethostname(), 1),
        "own name, by TCP": resolve(socket.gethostname(), 1, stream=True),
        "IPv6": resolve(socket.gethostname(), 28),
        "no such name": resolve("there.is.no.such.name.invalid", 1),
        "ping gateway": pings(GATEWAY, patience=30),
        "ping other": pings("192.0.2.77", patience=1),
    }
    for line in LOOPBACK_OUT:
        subprocess.run(["ip", *line.split()], check=True)
    subprocess.run(["ip", "route", "flush", "table", "local", "127.0.0.0/8"], check=False)
    Path("/proc/sys/net/ipv4/conf/pod0/route_localnet").write_text("1")
    results["loopback"] = exchange("127.0.0.1", ports["private"], timeout=2)
    return results


def _child(parent, play):
    try:
        enter_network_namespace()
        for line in LINKS:
            subprocess.run(["ip", *line.split()], check=True)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as frames:
            frames.bind(("gateway0", ETH_P_ALL))
            socket.send_fds(parent, [b"ready"], [frames.fileno()])
        parent.recv(1)
        return json.dumps(play()).encode()
    except PermissionError as error:
        return f"refused: {error}".encode()
    except BaseException:  # noqa: BLE001 - whatever it was, the parent shows it
        return traceback.format_exc().encode()


@contextlib.contextmanager
def pod(play):
    """Fork a child into a namespace with a link; yield its packet socket and a function for its result."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            theirs.sendall(_child(theirs, play))
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        text, descriptors, *_ = socket.recv_fds(ours, 4096, 1)
        if text.startswith(b"refused"):
            pytest.skip(
                f"this machine allows no network namespace, so the gateway was NOT tested: {text.decode()}"
            )
        assert descriptors, text.decode()

        def result():
            ours.sendall(b"x")
            received = bytearray()
            while chunk := ours.recv(1 << 16):
                received += chunk
            assert received.startswith(b"{"), received.decode()
            return json.loads(received)

        try:
            yield descriptors[0], result
        finally:
            os.close(descriptors[0])
    os.waitpid(child, 0)


@contextlib.contextmanager
def gateway(descriptor, *arguments, **options):
    control_plane = binaries.obtain(report=lambda text: None)
    command = control_plane.argv("gateway", "--packet-fd", str(descriptor), "--refuse", "10.96.0.0/16")
    command += arguments
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[descriptor], **options
    ) as process:
        line = process.stderr.readline()
        assert "ready" in line, line
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def results():
    host = own_address()
    if host is None:
        pytest.skip("this machine has no address but the loopback's, so the gateway was NOT tested")
    with (
        serving(socketserver.ThreadingTCPServer, host, Large) as tcp,
        serving(socketserver.ThreadingUDPServer, host, Echo) as udp,
        serving(socketserver.ThreadingTCPServer, "127.0.0.1", Visited) as private,
    ):
        ports = {"tcp": tcp, "udp": udp, "private": private}
        with pod(lambda: play_pod(host, ports)) as (descriptor, result), gateway(descriptor):
            return result()


EXPECTED = {
    "large": hashlib.sha256(LARGE).hexdigest(),
    "datagram": "cba",
    **dict.fromkeys(("closed", "service", "metadata"), "ConnectionRefusedError"),
    # The gateway does not speak for others.
    "neighbour": "No route to host",
    "ping gateway": True,
    "ping other": False,
    "IPv6": {"code": 0, "answers": 0, "address": None},
}


@pytest.mark.parametrize("what", EXPECTED)
def test_a_pod_reaches_the_world_and_is_refused_the_rest_at_once(results, what):
    assert results[what] == EXPECTED[what]


def test_names_are_resolved_as_the_host_resolves_them(results):
    expected = socket.gethostbyname(socket.gethostname())
    for way in ("own name", "own name, by TCP"):
        assert results[way]["code"] == 0
        assert results[way]["address"] == expected


def test_a_name_that_is_none_fails_and_does_not_hang(results):
    assert results["no such name"]["code"] in (2, 3)


def test_the_hosts_loopback_is_out_of_reach(results):
    assert results["loopback"] in ("TimeoutError", "ConnectionRefusedError", "No route to host")
    assert Visited.visits == 0


def test_the_gateway_ends_with_its_standard_input():
    with pod(dict) as (descriptor, result), gateway(descriptor) as process:
        process.stdin.close()
        assert process.wait(10) == 0
        result()


def test_the_gateway_ends_with_its_link():
    def cut():
        subprocess.run(["ip", "link", "del", "gateway0"], check=True)
        return {}

    with pod(cut) as (descriptor, result), gateway(descriptor) as process:
        result()
        assert process.wait(10) == 0
        assert "link is gone" in process.stderr.read()


def test_the_gateway_dies_with_its_parent():
    with pod(dict) as (descriptor, result):
        control_plane = binaries.obtain(report=lambda text: None)
        command = control_plane.argv("gateway", "--packet-fd", str(descriptor))
        reading, writing = os.pipe()
        # A shell between: it holds the pipe's end too, so only the parent's death can end the gateway.
        with subprocess.Popen(
            # What it starts in the background has /dev/null for its standard input unless told another.
            ["sh", "-c", 'exec 9<&0; "$@" <&9 & echo $!; wait', "sh", *command],
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[descriptor],
        ) as parent:
            pid = int(parent.stdout.readline())
            assert "ready" in parent.stderr.readline()
            watch = os.pidfd_open(pid)
            assert not select.select([watch], [], [], 0.3)[0], "the gateway ended before its parent"
            parent.kill()
            parent.wait()
            assert select.select([watch], [], [], 10)[0], "the gateway outlived its parent"
            os.close(watch)
        os.close(reading)
        os.close(writing)
        result()
