"""A Service's connections are shared out over its endpoints, or kept with one for a client."""

import itertools

from localkube.network.node_listeners import NodePlace
from localkube.network.service_proxy import Balancer, ServiceEndpoint, _endpoints, _numbers, nearest
from tests.unit.cpu_seconds import cpu_seconds

A, B, C = ("10.244.1.2", 80), ("10.244.2.2", 80), ("10.244.3.2", 80)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def firsts(balancer, client, count):
    return [next(balancer.choose(client)) for _ in range(count)]


def test_a_client_stays_with_its_endpoint_until_its_time_is_over():
    clock = Clock()
    balancer = Balancer(clock)
    balancer.update([A, B], 100)
    assert firsts(balancer, "x", 3) == [A, A, A]
    assert firsts(balancer, "y", 2) == [B, B]
    clock.now = 99
    assert firsts(balancer, "x", 1) == [A]
    clock.now = 150
    assert firsts(balancer, "x", 1) == [A]
    clock.now = 251
    assert firsts(balancer, "y", 1) == [A]


def test_the_endpoint_that_took_the_connection_is_the_one_remembered():
    balancer = Balancer()
    balancer.update([A, B, C], 100)
    assert list(itertools.islice(balancer.choose("x"), 2)) == [A, B]
    assert firsts(balancer, "x", 2) == [B, B]


NODES = [
    NodePlace(f"node-{n}", f"10.244.254.{n + 1}", f"10.244.{n + 1}.", zone) for n, zone in enumerate("aab")
]


def near(endpoints, client, *, local=False):
    return [endpoint.backend for endpoint in nearest(endpoints, client, local=local)]


def test_endpoints_of_the_clients_node_are_taken_where_traffic_is_local():
    endpoints = [ServiceEndpoint(A, "node-0"), ServiceEndpoint(B, "node-1")]
    assert near(endpoints, NODES[1], local=True) == [B]
    assert near(endpoints, NODES[2], local=True) == []
    assert near(endpoints, NODES[1]) == near(endpoints, None, local=True) == [A, B]


def test_topology_hints_prefer_the_node_then_the_zone():
    by_zone = [ServiceEndpoint(A, "node-0", (), ("a",)), ServiceEndpoint(B, "node-2", (), ("b",))]
    assert [near(by_zone, node) for node in NODES] == [[A], [A], [B]]
    by_node = [
        ServiceEndpoint(A, "node-0", ("node-0",), ("a",)),
        ServiceEndpoint(B, "node-1", ("node-1",), ("a",)),
    ]
    assert [near(by_node, node) for node in NODES] == [[A], [B], [A, B]]
    assert near([*by_zone, ServiceEndpoint(C)], NODES[0]) == [A, B, C]


def test_a_client_keeps_to_its_endpoints_and_leaves_a_removed_one():
    balancer = Balancer()
    balancer.update([A, B], 100, lambda client: [A] if client == "x" else [B])
    assert (firsts(balancer, "x", 2), firsts(balancer, "y", 2)) == ([A, A], [B, B])
    balancer.update([A, B], 100, lambda client: [B])
    assert firsts(balancer, "x", 1) == [B]


def test_the_endpoints_of_many_ports_are_found_in_one_pass_over_their_slices():
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 9000)]
    addresses = [{"addresses": [f"10.244.1.{number}"]} for number in range(2, 5)]
    slices = [(item, _numbers(item)) for item in [{"ports": ports, "endpoints": addresses}] * 2]
    with cpu_seconds():
        backends = [_endpoints(slices, port, "TCP")[0].backend for port in ports]
    assert backends[-1] == ("10.244.1.2", 8999)
    assert _endpoints(slices, {"port": 1}, "TCP") == _endpoints(slices, ports[0], "UDP") == []
