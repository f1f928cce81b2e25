"""The process that creates or deletes a cluster is killed at its requests: another one ends it clean.

A process that dies after a request that only reads leaves what the request before left, so those that change
something are the points that matter. The quick tests take some of them, the slow ones each.
"""

import contextlib
import random

import pytest

from kitlib.errors import KitError

from . import eks_processes, gke_lifecycle
from .crash_injection import ProcessKilled, ProcessLife

PAUSE = 30  # seconds until somebody tries again
MAX_REQUESTS = 200  # changing requests of one process
WHEN = ("before", "after")
SEED = 5
RUNNING = {"eks": "active", "gke": "running"}  # in the words of the cloud
pytestmark = pytest.mark.timeout(3000)


@pytest.fixture(params=["eks", "gke"])
def user(request, state_home, monkeypatch):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    if request.param == "eks":
        return eks_processes.EksProcesses(request.getfixturevalue("aws"), monkeypatch.setattr)
    return gke_lifecycle.GkeProcesses(request.getfixturevalue("google"), monkeypatch.setattr)


def killed(user, act, point, when):
    """Let a process act until it is killed at a changing request; return whether it came so far."""
    try:
        act(ProcessLife(point, when, user.changes_something))
    except ProcessKilled:
        user.cloud.clock.sleep(PAUSE)
        return True
    return False


def end_clean(user, about):
    user.delete()
    assert user.cloud.left() == [], about


def begun_is_deleted(user, points):
    """Kill creations at these points, and delete what they began from another one; return how many were."""
    for number, (point, when) in enumerate(points):
        user.begin_again()
        if not killed(user, user.create, point, when):
            return number
        end_clean(user, f"killed {when} the last of {user.life.requests}")
    return len(points)


def creation_goes_on(user, points):
    """Kill creations at these points, and go on from another process; return how many were."""
    for number, (point, when) in enumerate(points):
        user.begin_again()
        if not killed(user, user.create, point, when):
            return number
        cluster = user.create()
        assert cluster.status["state"] == RUNNING[cluster.provider]
        end_clean(user, f"killed {when} change {point}")
    return len(points)


def deletion_is_completed(user, points):
    """Kill deletions at these points, and complete them from another process; return how many were."""
    for number, (point, when) in enumerate(points):
        user.begin_again()
        user.create()
        if not killed(user, user.delete, point, when):
            return number
        end_clean(user, f"killed {when} the last of {user.life.requests}")
    return len(points)


EACH = [(point, when) for point in range(MAX_REQUESTS) for when in WHEN]
ACTS = {"deleted": begun_is_deleted, "continued": creation_goes_on, "deleted on": deletion_is_completed}
SOME = {
    "deleted": [(4, "before")],
    "continued": [(3, "after")],
    "deleted on": [(2, "after")],
}


@pytest.mark.parametrize("how", ACTS)
def test_another_process_completes_what_a_killed_one_began(user, how):
    assert ACTS[how](user, SOME[how]) == len(SOME[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", ACTS)
def test_a_creation_is_completed_wherever_its_process_was_killed(user, how):
    points = ACTS[how](user, EACH)
    print(f"{how}: {points} points")
    assert 8 <= points < len(EACH)


def live(user, *, seed, histories):
    """Have processes create or delete, one in the midst of what another began, die, and meet trouble."""
    choose = random.Random(seed)
    for number in range(histories):
        messages = []
        user.begin_again()
        for _ in range(choose.randint(1, 3)):
            act = choose.choice([user.create, user.create, user.delete])
            life = ProcessLife(choose.randint(0, 40), choose.choice(WHEN), user.changes_something)
            if choose.random() < 0.6:
                user.trouble(choose)
            with contextlib.suppress(ProcessKilled, KitError):
                act(life)
            messages.append((act.__name__, life.dies_at, life.when, str(life.requests[-1:])))
            user.cloud.clock.sleep(choose.choice([0, PAUSE, 600, 5 * 3600]))
        user.clear_faults()
        user.cloud.clock.sleep(PAUSE)
        end_clean(user, f"history {number} of seed {seed}: {messages}")


def test_nothing_is_left_after_some_histories(user):
    live(user, seed=SEED, histories=2)
