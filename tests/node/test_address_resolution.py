"""Who answers ARP requests on a cluster's network, with the bridges of racks and of a node that is cut off.

The bridges are in one namespace, where Linux by default answers for each address on every interface.
"""

import contextlib
import os
import socket
import struct
import subprocess
import time

from localkube.runtime.links.groups import NodeLinks
from localkube.runtime.links.netlink import Netlink, hardware_address
from localkube.runtime.pod_network import BRIDGE, make_network, make_node, plug_node, unplug_node
from localkube.runtime.syscalls import setns

from .network_namespace import in_network_namespace

SITE, NODES = "10.244.0.1", ("10.244.254.1", "10.244.254.2")
SETTINGS = {
    "address": SITE,
    "prefix": 16,
    "services": "10.96.0.0",
    "services_prefix": 16,
    "gateway": "10.244.255.254",
}
SHAPE = {"rate": 0, "latency": 0, "classes": []}
ARP, REQUEST, REPLY, SECONDS = 0x0806, 1, 2, 0.3


def answers(namespace, asked):
    """Ask for an IP address from a node's network; return the hardware address of each answer."""
    original = os.open("/proc/self/ns/net", os.O_RDONLY)
    setns(namespace)
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP))
        sock.bind(("eth0", ARP))
    finally:
        setns(original)
        os.close(original)
    with sock:
        own = sock.getsockname()[4]
        header = b"\xff" * 6 + own + struct.pack("!HHHBBH", ARP, 1, 0x0800, 6, 4, REQUEST)
        sock.send(header + own + own[-4:] + bytes(6) + socket.inet_aton(asked))
        found, end = [], time.monotonic() + SECONDS
        with contextlib.suppress(TimeoutError):
            while (left := end - time.monotonic()) > 0:
                sock.settimeout(left)
                frame = sock.recv(100)
                if frame[20:22] == struct.pack("!H", REPLY) and frame[28:32] == socket.inet_aton(asked):
                    found.append(frame[22:28])
        return found


def network():
    """Make a cluster's network in this namespace, with two nodes."""
    subprocess.run(["ip", "address", "del", f"{SITE}/16", "dev", "lo"], check=True)
    netlink = Netlink()
    make_network(netlink, SETTINGS)
    return netlink, [make_node(netlink, SETTINGS, address) for address in NODES]


@in_network_namespace
async def test_only_the_cluster_bridge_answers_for_the_address_of_the_site():
    netlink, (first, second) = network()
    assert answers(first, SITE) == [hardware_address(SITE)]
    groups = [
        {"bridge": f"rack-{number}", "parent": BRIDGE, "up": SHAPE, "down": SHAPE} for number in range(2)
    ]
    bridges = {address: f"rack-{number}" for number, address in enumerate(NODES)}
    NodeLinks(netlink).replace(groups, bridges, NODES)
    for node in (first, second):
        assert answers(node, SITE) == [hardware_address(SITE)]
    assert answers(first, NODES[1]) == [hardware_address(NODES[1])]


@in_network_namespace
async def test_nobody_answers_a_node_that_is_cut_off_until_it_is_back():
    netlink, (first, second) = network()
    request = {"address": NODES[0], "bridge": "alone"}
    unplug_node(netlink, request, [])
    assert [answers(first, address) for address in (SITE, NODES[1])] == [[], []]
    assert answers(second, SITE) == [hardware_address(SITE)]
    plug_node(netlink, request, [], BRIDGE)
    assert answers(first, SITE) == [hardware_address(SITE)]
