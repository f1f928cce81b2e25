"""Elastic training with real processes: who goes or comes, each step is taken, and the loss is the same."""

import signal
import time

import pytest

from localkube.controlplane import programs

from .elastic_processes import BATCH, ElasticRun, expected_losses


def assert_as_if_nothing_had_happened(run, *, survivor=None):
    """Each step was taken, with all its samples, and had the loss that it would have had."""
    steps = run.events("step")
    losses = expected_losses(max(step["step"] for step in steps) + 1)
    assert {step["step"] for step in steps} == set(range(len(losses)))
    assert {step["samples"] for step in steps} == {BATCH}
    assert max(abs(step["loss"] - losses[step["step"]]) for step in steps) < 1e-9
    survivor_steps = [step["step"] for step in steps if step["process"] == survivor]
    assert survivor_steps == sorted(set(survivor_steps))  # it has taken no step twice


def lose_and_win_workers(run):
    """Kill two, of them a rank 0; let one hang and go on; let one join and one leave."""
    two_at_least = "--nnodes=2:4"  # or on a busy machine the first begins before the second is there
    for _ in range(2):
        run.add(two_at_least)
    first = run.wait_for_steps(2)
    assert (first["reason"], first["source"], first["step"]) == ("start", "fresh", 0)

    # A killed one, then rank 0 itself: the other's process goes on, the dead one is started again.
    ranks = {event["rank"]: event["process"] for event in run.events("rendezvous")[-2:]}
    for rank in (1, 0):
        when = run.signal(ranks[rank], signal.SIGKILL)
        back = run.wait_for_steps(2, after=when)
        assert back["source"] == "live"
        assert back["step"] > 0
    assert run.events("lost")[-1]["reason"] == "peer lost"
    assert {event["restarts"] for event in run.events("rendezvous")[-2:]} == {1}

    run.add(two_at_least)
    assert run.wait_for_steps(3)["reason"] == "join"

    # One that hangs is left behind; when it goes on it finds that out, and is let in again.
    when = run.signal(2, signal.SIGSTOP)
    run.wait_for_steps(2, after=when)
    assert any(event["reason"] == "peer silent" for event in run.events("lost"))
    when = run.signal(2, signal.SIGCONT)
    run.wait_for_steps(3, after=when)
    assert run.events("rendezvous", 2)[-1]["restarts"] == 0  # the same process, not a new one

    when = run.leave(1)
    assert run.join(1) == 143
    run.wait_for_steps(2, after=when)
    assert len(run.events("leave", 1)) == 1
    assert run.events("rendezvous")[-1]["reason"] == "leave"

    run.finish()
    assert [run.join(number) for number in (0, 2)] == [0, 0]
    assert_as_if_nothing_had_happened(run, survivor=2)


@pytest.mark.timeout(600)
def test_workers_are_killed_hang_join_and_leave_and_the_result_is_the_same(tmp_path):
    with ElasticRun(tmp_path) as run:
        lose_and_win_workers(run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_meet_at_etcd_are_killed_hang_join_and_leave(tmp_path):
    (etcd,) = programs.obtain(["etcd-v2"], report=lambda text: None)
    with ElasticRun(tmp_path, backend="etcd", etcd=etcd.path) as run:
        lose_and_win_workers(run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_store_stops_nobody_and_all_killed_go_on_from_the_checkpoint(tmp_path):
    with ElasticRun(tmp_path) as run:
        for _ in range(2):
            run.add()
        run.wait_for_steps(2)
        run.kill_store()
        when = time.time()
        run.wait_for_steps(2, after=when, count=5)  # steps need no store
        run.start_store()  # an empty one
        run.wait_for(
            lambda: run.events("rendezvous")[-1]["reason"] == "store lost", "a round in the new store"
        )
        run.add()
        assert run.wait_for_steps(3)["reason"] == "join"

        for number in range(3):
            when = run.signal(number, signal.SIGKILL)
        run.wait_for_steps(3, after=when)
        rounds = [event for event in run.events("rendezvous") if event["time"] > when]
        assert rounds[0]["source"] == "checkpoint"
        assert rounds[0]["step"] > 0
        run.finish()
        assert [run.join(number) for number in range(3)] == [0, 0, 0]
        assert_as_if_nothing_had_happened(run)
