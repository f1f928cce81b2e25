"""The process that creates or deletes a cluster is killed at its requests: a later one completes what it
began, or leaves nothing of it.

A process that dies after a request that only reads leaves what the request before left. So those that change
something are the points at which it matters. The quick tests take some of them, the slow ones each.
"""

import contextlib
import random

import pytest

from kitlib.errors import KitError

from .aws.waits import SECONDS
from .crash_injection import ProcessKilled, ProcessLife
from .scenarios import WHEN, AwsScenario, GcpScenario, SimulatedScenario

MOST_PROCESSES = 200
pytestmark = pytest.mark.timeout(900)  # of work, not of waiting: time passes at once

PAUSE = 20  # seconds after which somebody tries again


@pytest.fixture(scope="module")
def clients():
    """boto3's clients: it takes a second to make them."""
    return {}


@pytest.fixture(params=["made up", "amazon", "google"])
def world(request, clients, monkeypatch):
    """A cloud with an empty account, in which all is ready after a few seconds."""
    if request.param == "made up":
        return SimulatedScenario()
    if request.param == "google":
        google = request.getfixturevalue("google")
        for kind in google.world.delays:
            google.delay(kind, min(5.0, google.world.delays[kind]))
        return GcpScenario(google, monkeypatch.setattr)
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
    amazon = request.getfixturevalue("amazon")
    for kind in SECONDS:
        amazon.delay(kind, 5)
    return AwsScenario(amazon, clients)


def by_many(world, act, *, changes):
    """Let process after process make so many changes and die, until one comes to the end; return how many.

    A change that one before it made already, and that is asked for again, is not counted.
    """
    made: set[str] = set()
    for number in range(MOST_PROCESSES):
        life = ProcessLife(
            changes - 1, "after", lambda request: world.changes(request) and request not in made
        )
        try:
            act(life)
        except ProcessKilled:
            made.update(life.requests)
            world.clock.advance(PAUSE)
            continue
        return number
    raise AssertionError(f"{MOST_PROCESSES} processes, and it is not done: {world.left()}")


def create_and_delete_by_many(world, *, changes):
    assert by_many(world, world.create, changes=changes) > 0
    world.create()  # which finds all of it, and changes nothing
    assert not any(map(world.changes, world.life.requests))
    assert by_many(world, world.delete, changes=changes) > 0
    assert world.left() == []


def begin_and_delete(world, points):
    """Kill a creation after each of these changes, and delete what stands; return how many killed it."""
    killed = 0
    for point in points:
        try:
            world.create(ProcessLife(point, "after", world.changes))
        except ProcessKilled:
            killed += 1
        begun = [each for each in world.life.requests if world.changes(each)]
        world.clock.advance(PAUSE)
        world.delete()
        assert world.left() == [], f"after {begun}"
        if killed <= points.index(point):
            break  # it has no more changes than that
    return killed


def test_a_cluster_is_created_and_deleted_by_processes_that_die(world):
    create_and_delete_by_many(world, changes=world.few)


def test_what_a_killed_process_began_is_deleted_by_another(world):
    assert begin_and_delete(world, world.samples) == len(world.samples)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_cluster_is_created_and_deleted_by_processes_that_die_after_each_change(world):
    create_and_delete_by_many(world, changes=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_a_process_began_is_deleted_wherever_it_was_killed(world):
    assert begin_and_delete(world, range(MOST_PROCESSES)) > 5


HISTORIES = 250  # on each cloud, in parts that can run side by side
PARTS = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_left_after_some_histories(world):
    live(world, seed=PARTS, histories=5)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(PARTS))
def test_nothing_is_left_after_any_history(world, seed):
    live(world, seed=seed, histories=HISTORIES // PARTS)


def live(world, *, seed, histories):
    """Have processes create or delete, one in the midst of what another began, die, and meet trouble."""
    choose = random.Random(seed)
    for number in range(histories):
        for _ in range(choose.randint(1, 3)):
            act = choose.choice([world.create, world.create, world.delete])
            life = ProcessLife(choose.randint(0, 60), choose.choice(WHEN), world.changes)
            if choose.random() < 0.5:
                world.trouble(choose)
            with contextlib.suppress(ProcessKilled, KitError):
                act(life, workers=choose.choice([1, 8]))
            world.clock.advance(choose.choice([0, PAUSE, 600]))
        world.clock.advance(PAUSE)
        world.clear_faults()
        world.delete(workers=8)
        assert world.left() == [], f"history {number} of seed {seed}"
