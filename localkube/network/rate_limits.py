"""Limits on new connections to what all pods share: the API server, kubelets and the egress gateway.

A connection that is refused there has already cost processor time that is not charged to the pod: a TLS
handshake, a step of the gateway's TCP/IP stack. The kernel drops it first, in the network namespace of the
cluster; the pod's kernel retries later.
"""

import logging
import socket

from localkube.network import nftables
from localkube.network.nftables import ACCEPT, DROP, SOURCE, Expression, Hook, NftTable, verdict
from localkube.runtime.pod_network import GATE

# New connections: per second, and burst.
TO_API_SERVER, TO_WORLD = (20, 200), (50, 1_000)
# Datagrams: per second, and burst; QUIC downloads 100 Mbit/s with 5,000 acknowledgements.
DATAGRAMS_TO_WORLD = (10_000, 20_000)

log = logging.getLogger(__name__)


def limit_rates(*, port: int, closed: int) -> None:
    """Replace the rules of the network namespace that this process is in.

    Args:
        port: The API server's.
        closed: The port of metrics-server, which only the API server may reach.
    """
    try:
        tables = [_api_server(port, closed), _gateway(socket.if_nametoindex(GATE[0]))]
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, nftables.NETLINK_NETFILTER) as kernel:
            for table in tables:
                table.replace(kernel)
    except OSError as error:  # a kernel without nf_tables, or without those of a bridge
        log.warning("new connections of pods are not rate-limited: %s", error)


def close_to_pods(kernel: socket.socket, *, port: int, client: str) -> None:
    """Replace the rules of a node's network, so that one address alone opens connections to its kubelet.

    Args:
        kernel: A netlink socket of that network, for netfilter.
        port: The kubelet's.
        client: The address from which the API server and metrics-server come.
    """
    table = NftTable("trainyard-kubelet")
    table.chain("ingress", Hook("filter", nftables.LOCAL_IN, 0))
    table.rule("ingress", [*nftables.is_ipv4(), *nftables.in_network(SOURCE, client), verdict(ACCEPT)])
    table.rule("ingress", [*nftables.first_segment(), *nftables.port_in(port, port), verdict(DROP)])
    try:
        table.replace(kernel)
    except OSError as error:  # a kernel without nf_tables; the kubelet closes them by itself
        log.warning("pods may try to connect to kubelets: %s", error)


def _api_server(port: int, closed: int) -> NftTable:
    table = NftTable("trainyard-api")
    table.chain("ingress", Hook("filter", nftables.LOCAL_IN, 0))
    table.rule("ingress", [*nftables.on_loopback(incoming=True), verdict(ACCEPT)])
    table.rule("ingress", [*nftables.first_segment(), *nftables.port_in(closed, closed), verdict(DROP)])
    opens = [*nftables.is_ipv4(), *nftables.first_segment(), *nftables.port_in(port, port)]
    _limit(table, "ingress", opens, TO_API_SERVER)
    return table


def _gateway(interface: int) -> NftTable:
    table = NftTable("trainyard-gateway", nftables.NFPROTO_BRIDGE)
    table.chain("forward", Hook("filter", nftables.FORWARD, 0))
    leaves = nftables.output_interface(interface)
    _limit(table, "forward", [*leaves, *nftables.first_segment()], TO_WORLD)
    _limit(table, "forward", [*leaves, *nftables.protocol_is("UDP")], DATAGRAMS_TO_WORLD)
    return table


def _limit(table: NftTable, chain: str, matches: list[Expression], rate: tuple[int, int]) -> None:
    per_second, burst = rate
    table.rule(chain, [*matches, *table.above_rate(per_second, burst=burst), verdict(DROP)])
