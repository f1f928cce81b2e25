"""The elastic workers' rendezvous: how often it reads the record, and how a restarted worker comes back."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import elastic_rendezvous as rendezvous
import pytest
import torch.distributed as dist

from .forked import free_port


@pytest.fixture
def settings():
    """Yield a function that returns the settings of a rendezvous at a store of this test."""
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

    def make(smallest, **conf):
        conf = {"last_call_timeout": "1", "join_timeout": "10"} | conf
        return rendezvous.RendezvousSettings("run", "c10d", f"127.0.0.1:{port}", smallest, 4, conf)

    yield make
    del store


def test_pauses_grow_to_that_of_torch_and_begin_anew_with_each_rendezvous(monkeypatch):
    slept = []
    monkeypatch.setattr(rendezvous, "_delay", slept.append)
    pauses = rendezvous._PollDelay()
    for _ in range(2):
        pauses.restart()
        for _ in range(40):
            pauses(1)
    assert slept[:40] == slept[40:] == sorted(slept[:40])
    assert (slept[0], slept[39]) == (rendezvous.MIN_DELAY, 1)
    assert sum(wait < 1 for wait in slept[:40]) < 25  # a waiting worker does not load the store for long
    pauses((0, 0.3))
    assert slept[-1] == (0, 0.3)  # torch's own random one


def test_a_restarted_worker_ends_the_round_in_which_it_died_and_is_expected_once(settings):
    alone = settings(1, keep_alive_max_attempt="60")
    died = rendezvous.ElasticRendezvous(alone)
    first = died.next()
    died._handler._stop_heartbeats()
    assert (first.number, first.world_size) == (0, 1)

    # Without knowing whom it replaces, it would wait until the heartbeats of the dead one expire.
    back = rendezvous.ElasticRendezvous(alone, replaces=os.getpid())
    again = back.next()
    assert (again.number, again.rank, again.world_size) == (1, 0, 1)
    assert back._handler._state_holder.state.expected == 1
    died._handler._state_holder._last_sync_time = -1  # it has read the record a moment ago
    assert died.status(first).over
    back.close()


def test_a_peer_is_silent_after_the_limit_and_later_on_a_busy_machine():
    def reads(heartbeats, values, *, begin=0.0, every=0.25):
        return [
            heartbeats.silent({"peer": value}, now=begin + every * number)
            for number, value in enumerate(values)
        ]

    heartbeats = rendezvous.Heartbeats(limit=1.5)
    assert not any(reads(heartbeats, range(40)))
    assert reads(heartbeats, [39] * 8, begin=10) == [set()] * 6 + [{"peer"}] * 2

    heartbeats.restart()
    assert not any(reads(heartbeats, [1] * 6, begin=20))  # as many missed heartbeats as are allowed
    assert not any(reads(heartbeats, [2] * 11, begin=21.5))  # so twice that pause is allowed now
    assert reads(heartbeats, [2] * 3, begin=24.25) == [set(), set(), {"peer"}]

    heartbeats = rendezvous.Heartbeats(limit=1.5)
    # This worker was stopped for a minute itself, and cannot know what the other did.
    assert not any(reads(heartbeats, [1, 1, 1], every=60))


def test_a_round_that_ends_for_a_silent_worker_does_not_expect_it_again(settings):
    one, other = (rendezvous.ElasticRendezvous(settings(2)) for _ in range(2))
    with ThreadPoolExecutor() as threads:
        first = [pending.result() for pending in [threads.submit(worker.next) for worker in (one, other)]]
    assert [now.world_size for now in first] == [2, 2]
    other._handler._stop_heartbeats()
    began = time.monotonic()
    while not one.status(first[0]).silent:
        time.sleep(rendezvous.WATCH_SECONDS)
    assert time.monotonic() - began > 1.5 - rendezvous.WATCH_SECONDS
    one.declare_over(first[0])
    assert one._handler._state_holder.state.expected == 1
    one.close()
    other._handler._stop_heartbeats()
