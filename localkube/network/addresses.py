"""The addresses of the cluster's network, and where they are on this machine.

With namespaces every address is real. In plain mode pods, nodes and Services keep their addresses in the API,
and loopback addresses stand in for them.
"""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

PODS, SERVICES = "10.244.", "10.96."
LOW_PORTS, MOVED_BY = 1024, 64000
API_PORT = 6443
# Even octets, so that two clusters' ranges never overlap; 127.0 and its neighbours belong to the machine.
OCTETS = range(2, 253, 2)


class Addresses:
    """The cluster's addresses as the kubelet reaches them: unchanged in the cluster's network namespace."""

    def reach(self, host: str, port: int) -> tuple[str, int]:
        """Translate a cluster address to the one to connect to, or to listen on."""
        return host, port

    def seen(self, host: str) -> str:
        """Translate the address of a peer or a destination back to the cluster's."""
        return host


class LoopbackAddresses(Addresses):
    """Plain mode: 10.244.a.b is 127.octet.a.b, 10.96.a.b is 127.(octet + 1).a.b.

    The preload library's ``addresses.c`` does the same for the programs of the pods.

    Args:
        low: Added to ports below 1024, where this user may not listen on them.

    Example:
        >>> LoopbackAddresses(64, low=64000).reach("10.96.0.10", 53)
        ('127.65.0.10', 64053)
    """

    def __init__(self, octet: int, *, low: int) -> None:
        self.octet, self.low = octet, low

    def reach(self, host: str, port: int) -> tuple[str, int]:
        for network, second in ((PODS, self.octet), (SERVICES, self.octet + 1)):
            if host.startswith(network):
                moved = port + self.low if 0 < port < LOW_PORTS else port
                return f"127.{second}.{host.removeprefix(network)}", moved
        return host, port

    def seen(self, host: str) -> str:
        for network, second in ((PODS, self.octet), (SERVICES, self.octet + 1)):
            if host.startswith(f"127.{second}."):
                return network + host.removeprefix(f"127.{second}.")
        return host


def reserve_octet(name: str, previous: int | None = None) -> tuple[int, socket.socket]:
    """Reserve a free range: the cluster's previous one, or one derived from its name.

    Returns:
        The range and a socket, which reserves it for as long as any process has it open.
    """
    start = sum(name.encode()) % len(OCTETS)
    order = [*OCTETS[start:], *OCTETS[:start]]
    for octet in ([previous] if previous else []) + order:
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind((f"127.{octet}.0.1", API_PORT))
            _check_free(f"127.{octet}.0.1")
        except OSError:
            reservation.close()
        else:
            return octet, reservation
    raise OSError("every range of loopback addresses is taken by another cluster")


def _check_free(address: str) -> None:
    """Raise OSError if another program listens where the API server is to."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, API_PORT))


def moved_ports(octet: int) -> int:
    """Compute the offset of ports below 1024; 0 where this user may listen on them."""
    with socket.socket() as sock:
        try:
            sock.bind((f"127.{octet}.0.1", 1))
        except PermissionError:
            return MOVED_BY
    return 0


@dataclass(frozen=True)
class ClusterNetwork:
    """The addresses of a cluster's network."""

    address: str = "10.244.0.1"
    prefix: int = 16
    gateway: str = "10.244.255.254"
    services: str = "10.96.0.0"
    services_prefix: int = 16

    @property
    def pods(self) -> str:
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))

    def pod_network(self) -> dict[str, Any]:
        """The part that the runtime needs to connect a pod."""
        return {
            "prefix": self.prefix,
            "router": self.address,
            "gateway": self.gateway,
            "services": self.services,
            "services_prefix": self.services_prefix,
        }


NETWORK = ClusterNetwork()
