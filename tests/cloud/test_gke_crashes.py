"""The process that creates or deletes a cluster is killed at its requests: another one ends it clean.

A process that dies after a request that only reads leaves what the request before left, so those that change
something are the points that matter. The quick tests take some of them, the slow ones each.
"""

import contextlib
import random

import pytest

from kitlib.errors import KitError

from .crash_injection import ProcessKilled, ProcessLife
from .gke_lifecycle import GkeProcesses, changes

WHEN = ("before", "after")
PAUSE = 30  # seconds until somebody tries again
MOST = 200  # changing requests; a point beyond the last kills nobody


@pytest.fixture
def world(google, clock, state_home, monkeypatch):
    return GkeProcesses(google, monkeypatch.setattr)


def die(world, act, point, when):
    """Let a process die at its n-th change; return whether there was one."""
    try:
        act(ProcessLife(point, when, changes))
    except ProcessKilled:
        world.google.clock.sleep(PAUSE)
        return True
    return False


def end_clean(world, about):
    world.delete()
    assert world.google.left() == [], about


@pytest.mark.parametrize(("point", "when"), [(1, "after"), (7, "before"), (19, "after"), (20, "after")])
def test_what_a_killed_creation_began_is_deleted_by_another_process(world, point, when):
    assert die(world, world.create, point, when)
    end_clean(world, world.life.requests)


def test_what_a_killed_creation_began_is_completed_by_another_process(world):
    for point in (2, 9, 5):
        assert die(world, world.create, point, "after")
    assert world.create()._describe().state == "running"
    world.create()
    assert not any(map(changes, world.life.requests)), "a second creation changes nothing"
    end_clean(world, "")


@pytest.mark.parametrize(("point", "when"), [(0, "after"), (5, "before"), (9, "after")])
def test_what_a_killed_deletion_left_is_deleted_by_another_process(world, point, when):
    world.create()
    assert die(world, world.delete, point, when)
    end_clean(world, world.life.requests)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", WHEN)
def test_a_creation_is_killed_at_each_change_and_deleted(world, when):
    points = 0
    while die(world, world.create, points, when):
        end_clean(world, f"{when} change {points}")
        points += 1
        assert points < MOST
    end_clean(world, "the last one")
    print(f"{points} changes")
    assert points > 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", WHEN)
def test_a_deletion_is_killed_at_each_change_and_completed(world, when):
    points = 0
    world.create()
    while die(world, world.delete, points, when):
        end_clean(world, f"{when} change {points}")
        points += 1
        world.create()
    assert world.google.left() == []
    print(f"{points} changes")
    assert points > 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_is_created_and_deleted_by_processes_that_each_make_one_change(world):
    for act in (world.create, world.delete):
        made: set[str] = set()
        while one_more_change(world, act, made):
            assert len(made) < MOST, f"it is not done: {world.google.left()}"
    assert world.google.left() == []


def one_more_change(world, act, made):
    """Let a process make a change that none made before it, and die; return whether there was one."""
    life = ProcessLife(0, "after", lambda request: changes(request) and request not in made)
    try:
        act(life)
    except ProcessKilled:
        made.update(life.requests)
        world.google.clock.sleep(PAUSE)
        return True
    return False


def test_nothing_is_left_after_some_histories(world):
    live(world, seed=0, histories=4)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_left_after_any_history(world, seed):
    live(world, seed=seed, histories=40)


def live(world, *, seed, histories):
    """Let processes create or delete, one amid what another began, die, and meet trouble."""
    choose = random.Random(seed)
    for number in range(histories):
        for _ in range(choose.randint(1, 3)):
            act = choose.choice([world.create, world.create, world.delete])
            life = ProcessLife(choose.randint(0, 40), choose.choice(WHEN), changes)
            if choose.random() < 0.5:
                world.trouble(choose)
            with contextlib.suppress(ProcessKilled, KitError):
                act(life)
            world.google.clock.sleep(choose.choice([0, PAUSE, 600]))
        world.google.clock.sleep(PAUSE)
        world.google.clear_faults()
        end_clean(world, f"history {number} of seed {seed}")
