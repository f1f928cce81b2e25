"""The elastic workers' rendezvous: how often it reads the record, and how a restarted worker comes back."""

import importlib
import os
import sys

import pytest
import torch.distributed as dist

from .elastic_processes import TRAINERS
from .parameter_server_job import free_port


@pytest.fixture(scope="module")
def rendezvous():
    sys.path.insert(0, str(TRAINERS))
    yield importlib.import_module("elastic_rendezvous")
    sys.path.remove(str(TRAINERS))


def test_pauses_grow_to_that_of_torch_and_begin_anew_with_each_rendezvous(rendezvous, monkeypatch):
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


def test_a_restarted_worker_ends_the_round_in_which_it_died_and_is_expected_once(rendezvous):
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    conf = {"last_call_timeout": "1", "join_timeout": "10", "keep_alive_max_attempt": "60"}
    settings = rendezvous.RendezvousSettings("run", "c10d", f"127.0.0.1:{port}", 1, 4, conf)
    died = rendezvous.ElasticRendezvous(settings)
    first = died.next()
    died._handler._stop_heartbeats()
    assert (first.number, first.world_size) == (0, 1)

    # Without knowing whom it replaces, it would wait until the heartbeats of the dead one expire.
    back = rendezvous.ElasticRendezvous(settings, replaces=os.getpid())
    again = back.next()
    assert (again.number, again.rank, again.world_size) == (1, 0, 1)
    assert back._handler._state_holder.state.expected == 1
    died._handler._state_holder._last_sync_time = -1  # it has read the record a moment ago
    assert died.status(first).over
    back.close()
    del store
