"""What a pod cannot have of the way out: a cloud machine's credentials, or all flows there are.

The gateway runs in a network namespace that plays the world: it has the addresses of metadata services.
"""

import os
import select
import socket
import subprocess

import pytest

from localkube.runtime.syscalls import die_with_parent

from ..node.network_namespace import enter_network_namespace
from ..node.test_gateway import gateway, pod

METADATA = {
    "most clouds": "169.254.169.254",
    "ECS tasks": "169.254.170.2",
    "EKS Pod Identity": "169.254.170.23",
    "Tencent": "169.254.0.23",
    "Alibaba": "100.100.100.200",
    "Azure": "168.63.129.16",
    "Oracle": "192.0.0.192",
}
WORLD, ECHO, SECOND = "203.0.113.9", 9000, "10.244.1.6"
OF_POD, TRIED, PATIENCE = 256, 300, 3


def world():
    """Make this process's network the world, with a child that answers on every address of it."""
    enter_network_namespace()
    for address in (WORLD, *METADATA.values()):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
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


def reached(address):
    try:
        with socket.create_connection((address, 80), timeout=20) as connection:
            return connection.recv(1) == b""
    except OSError:
        return False


def opened(count, address=""):
    made = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(count)]
    for each in made:
        each.bind((address, 0))
    return made


def echoes(sockets):
    """Send a datagram from each socket, and count those that come back."""
    for each in sockets:
        each.sendto(b"x", (WORLD, ECHO))
    waiting = {each.fileno(): each for each in sockets}
    while ready := select.select(waiting, [], [], PATIENCE)[0]:
        for number in ready:
            waiting.pop(number).recv(1)
    return len(sockets) - len(waiting)


def flood():
    subprocess.run(["ip", "address", "add", f"{SECOND}/16", "dev", "pod0"], check=True)
    many, other = opened(TRIED), opened(1, SECOND)
    heard = sum(echoes(many[begin : begin + 50]) for begin in range(0, TRIED, 50))
    return {"heard": heard, "other": echoes(other), "again": echoes(many[:1])}


def seen_by(play):
    with pod(play) as (descriptor, result), gateway(descriptor, preexec_fn=world):
        return result()


@pytest.mark.timeout(300)
def test_no_metadata_service_of_any_cloud_is_reached_and_the_world_is():
    seen = seen_by(lambda: {name: reached(address) for name, address in {**METADATA, "world": WORLD}.items()})
    assert seen == dict.fromkeys(METADATA, False) | {"world": True}


@pytest.mark.timeout(300)
def test_a_pod_holds_a_share_of_the_datagram_flows_and_another_pod_gets_its_own():
    seen = seen_by(flood)
    assert seen == {"heard": OF_POD, "other": 1, "again": 1}
