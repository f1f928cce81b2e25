"""What a pod cannot have of the way out: a cloud machine's credentials, or all flows there are.

The gateway runs in a network namespace that plays the world: it has the addresses of metadata services.
"""

import os
import resource
import select
import socket
import subprocess
import tempfile

import pytest
from dnslib import QTYPE, DNSRecord

from localkube.runtime.syscalls import die_with_parent

from ..node.network_namespace import enter_network_namespace, mount
from ..node.test_gateway import GATEWAY, POD, gateway, pod

METADATA = {
    "most clouds": "169.254.169.254",
    "ECS tasks": "169.254.170.2",
    "EKS Pod Identity": "169.254.170.23",
    "Tencent": "169.254.0.23",
    "Alibaba": "100.100.100.200",
    "Azure": "168.63.129.16",
    "Oracle": "192.0.0.192",
}
WORLD, ECHO, SECOND, OTHER = "203.0.113.9", 9000, "10.244.1.6", "10.244.1.7"
OF_POD, TRIED, PATIENCE = 256, 300, 8
# Nobody is on that link, and nobody says so: a connection waits until it is given up.
SILENT, DIALS_OF_POD, DIALS_OF_NAMESPACE, DIALLED = "198.51.100.9", 128, 256, 1200


def world():
    """Make this process's network the world, with a child that answers on every address of it."""
    enter_network_namespace()
    for address in (WORLD, *METADATA.values()):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    for line in (
        "link add silent type veth peer name nobody",
        "link set nobody up",
        "link set silent up",
        f"address add {SILENT}1/24 dev silent",
        f"neighbour add {SILENT} lladdr 02:00:00:00:00:09 dev silent",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    with tempfile.NamedTemporaryFile("w", prefix="resolv-") as file:
        file.write(f"nameserver {SILENT}\n")
        file.flush()
        mount("--bind", file.name, os.path.realpath("/etc/resolv.conf"))
    streams = socket.create_server(("0.0.0.0", 80))
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", ECHO))
    if os.fork():
        return
    die_with_parent()
    os.closerange(datagrams.fileno() + 1, 1024)
    os.closerange(3, streams.fileno())  # the pipe among them, by whose end Popen learns of the exec
    while ready := select.select([streams, datagrams], [], [])[0]:
        if streams in ready:
            streams.accept()[0].close()
        if datagrams in ready:
            datagrams.sendto(*datagrams.recvfrom(100))


def reached(address, *, source="", timeout=20):
    try:
        with socket.create_connection((address, 80), timeout, (source, 0)) as connection:
            return connection.recv(1) == b""
    except OSError:
        return False


def opened(count, address=""):
    sockets = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(count)]
    for connection in sockets:
        connection.bind((address, 0))
    return sockets


def echoes(sockets):
    """Send a datagram from each socket, and count those that come back."""
    for connection in sockets:
        connection.sendto(b"x", (WORLD, ECHO))
    waiting = {socket_.fileno(): socket_ for socket_ in sockets}
    while ready := select.select(waiting, [], [], PATIENCE)[0]:
        for number in ready:
            waiting.pop(number).recv(1)
    return len(sockets) - len(waiting)


def flood():
    subprocess.run(["ip", "address", "add", f"{SECOND}/16", "dev", "pod0"], check=True)
    many, second_client = opened(TRIED), opened(1, SECOND)
    heard = sum(echoes(many[begin : begin + 50]) for begin in range(0, TRIED, 50))
    return {"heard": heard, "other": echoes(second_client), "again": echoes(many[:1])}


def dial(address):
    """Begin connections to nobody, and count those that are not refused."""
    sockets = [socket.socket() for _ in range(DIALLED)]
    poll = select.poll()
    for connection in sockets:
        connection.setblocking(False)
        connection.bind((address, 0))
        connection.connect_ex((SILENT, 80))
        poll.register(connection, select.POLLOUT)
    refused = set()
    while ready := poll.poll(1000 * PATIENCE):
        for number, _ in ready:
            poll.unregister(number)
            refused.add(number)
    return sockets, DIALLED - len(refused)


def dial_without_end():
    for address in (SECOND, OTHER):
        subprocess.run(["ip", "address", "add", f"{address}/16", "dev", "pod0"], check=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    connections, first = dial(POD)
    kept_too, second = dial(SECOND)
    return {
        "of a pod": first,
        "of both": first + second,
        "other": reached(WORLD, source=OTHER, timeout=PATIENCE),
    }


def ask_without_end():
    """Ask the gateway's own DNS for what nobody answers, and then, as another pod, for an address."""
    subprocess.run(["ip", "address", "add", f"{OTHER}/16", "dev", "pod0"], check=True)
    for sender in opened(TRIED, POD):
        for kind in (QTYPE.TXT, QTYPE.MX):
            sender.sendto(DNSRecord.question("silent.example", QTYPE[kind]).pack(), (GATEWAY, 53))
    (second_client,) = opened(1, OTHER)
    second_client.settimeout(PATIENCE)
    second_client.sendto(DNSRecord.question("localhost").pack(), (GATEWAY, 53))
    return {"address": str(DNSRecord.parse(second_client.recv(512)).a.rdata)}


def seen_by(play, *arguments):
    with pod(play) as (descriptor, result), gateway(descriptor, *arguments, preexec_fn=world):
        return result()


@pytest.mark.timeout(300)
def test_no_metadata_service_of_any_cloud_is_reached_and_the_world_is():
    reached_by_name = seen_by(
        lambda: {name: reached(address) for name, address in {**METADATA, "world": WORLD}.items()}
    )
    assert reached_by_name == dict.fromkeys(METADATA, False) | {"world": True}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pod_holds_a_share_of_the_datagram_flows_and_another_pod_gets_its_own():
    counts = seen_by(flood)
    assert counts == {"heard": OF_POD, "other": 1, "again": 1}


@pytest.mark.timeout(300)
def test_a_pod_and_a_namespace_hold_their_shares_of_dials_and_another_one_gets_out(tmp_path):
    pods = tmp_path / "pods"
    pods.write_text(f"{POD} ada\n{SECOND} ada\n{OTHER} bob\n")
    counts = seen_by(dial_without_end, "--pods", str(pods))
    assert counts == {"of a pod": DIALS_OF_POD, "of both": DIALS_OF_NAMESPACE, "other": True}


@pytest.mark.timeout(300)
def test_a_pod_s_questions_leave_the_gateway_s_dns_to_others():
    assert seen_by(ask_without_end) == {"address": "127.0.0.1"}
