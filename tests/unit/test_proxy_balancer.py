"""A Service's connections are shared out over its endpoints, or kept with one for a client."""

import itertools

from localkube.network.service_proxy import Balancer

A, B, C = ("10.244.1.2", 80), ("10.244.2.2", 80), ("10.244.3.2", 80)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def firsts(balancer, client, count):
    return [next(balancer.choose(client)) for _ in range(count)]


def test_connections_go_round():
    balancer = Balancer()
    balancer.update([A, B, C], None)
    assert firsts(balancer, "x", 6) == [A, B, C, A, B, C]


def test_each_endpoint_is_tried_once_for_a_connection():
    balancer = Balancer()
    balancer.update([A, B, C], None)
    next(balancer.choose("x"))
    assert list(balancer.choose("x")) == [B, C, A]


def test_no_endpoint_is_no_choice():
    assert list(Balancer().choose("x")) == []


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


def test_a_client_whose_endpoint_is_gone_gets_another_and_the_others_keep_theirs():
    balancer = Balancer()
    balancer.update([A, B], 100)
    assert (firsts(balancer, "x", 1), firsts(balancer, "y", 1)) == ([A], [B])
    balancer.update([B, C], 100)
    assert firsts(balancer, "y", 2) == [B, B]
    assert firsts(balancer, "x", 1)[0] in (B, C)
