"""Limit the connections of one pod to the API server's own address.

The API server keeps every connection in use, with memory for each, and does not limit them. Here the kernel
lists them every few seconds, and those beyond a pod's share are reset. Connection tracking would refuse them
at once, but its table would be another resource that all pods share. Connections through the Service
``kubernetes`` are limited by the relay instead.

Source: https://man7.org/linux/man-pages/man7/sock_diag.7.html, linux/inet_diag.h
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from collections import defaultdict

from localkube.network.accepting import NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
from localkube.runtime.links.netlink import Netlink

log = logging.getLogger(__name__)

MAX_PER_POD = 256
CHECK_SECONDS = 2.0
SOCK_DESTROY = 21
ESTABLISHED = 1 << 1
# struct inet_diag_req_v2 before its inet_diag_sockid, and the same of struct inet_diag_msg.
REQUEST, IDENTITY, IDENTITY_OFFSET = struct.Struct("=BBBBI"), struct.Struct("!HH4s12x4s12x4x8x"), 4


class ConnectionLimit:
    """Resets connections to a port that exceed one address's share.

    Args:
        network: Addresses outside of it are not limited.
        limit: Connections of one address.
    """

    def __init__(self, *, port: int, network: str, limit: int = MAX_PER_POD) -> None:
        self._port, self._network, self._limit = port, ipaddress.ip_network(network), limit

    async def run(self) -> None:
        """Enforce the limit every two seconds."""
        gateway = socket.inet_ntoa((int(self._network.network_address) + 1).to_bytes(4, "big"))
        while True:
            try:
                self.enforce(besides=gateway)
            except OSError as error:  # a kernel without CONFIG_INET_DIAG_DESTROY
                log.warning("connections of pods to the API server are not limited: %s", error)
                return
            await asyncio.sleep(CHECK_SECONDS)

    def enforce(self, *, besides: str) -> None:
        """Reset the connections beyond a share in the network namespace of this process.

        Args:
            besides: An address of the network that is not limited: the cluster's own.
        """
        connections: dict[str, list[bytes]] = defaultdict(list)
        with contextlib.closing(Netlink(NETLINK_SOCK_DIAG)) as kernel:
            to_port = struct.pack("!H", self._port).ljust(IDENTITY.size, b"\0")
            for message in kernel.dump(SOCK_DIAG_BY_FAMILY, _request(to_port)):
                identity = message[IDENTITY_OFFSET : IDENTITY_OFFSET + IDENTITY.size]
                address = socket.inet_ntoa(IDENTITY.unpack(identity)[3])
                if address != besides and ipaddress.ip_address(address) in self._network:
                    connections[address].append(identity)
            for address, identities in connections.items():
                for identity in identities[self._limit :]:
                    with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
                        kernel.request(SOCK_DESTROY, 0, _request(identity))
                if len(identities) > self._limit:
                    beyond = len(identities) - self._limit
                    log.warning("%s held %d connections too many to port %d", address, beyond, self._port)


def _request(identity: bytes) -> bytes:
    return REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ESTABLISHED) + identity
