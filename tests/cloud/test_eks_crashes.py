"""The process that creates or deletes an EKS cluster is killed at its requests: a later one completes what it
began, or leaves nothing of it. Quick tests take some points; the slow ones take each.
"""

import contextlib
import random

import pytest

from kitlib.errors import KitError

from .crash_injection import ProcessKilled, ProcessLife
from .eks_processes import NAME, EksProcesses, changes

MOST = 60  # changing requests of one process
PAUSE = 20  # seconds after which somebody tries again
HISTORIES, PARTS = 200, 4
WHEN = ("before", "after")
pytestmark = pytest.mark.timeout(3000)


@pytest.fixture
def user(aws, state_home, monkeypatch):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)
    return EksProcesses(aws, monkeypatch.setattr)


def killed(user, act, point, when):
    """Let a process act until it is killed at a changing request; return whether it came so far."""
    try:
        act(ProcessLife(point, when, changes))
    except ProcessKilled:
        user.aws.clock.sleep(PAUSE)
        return True
    return False


def begun_is_deleted(user, points):
    """Kill creations at these points, and delete what stands from another process; return how many were."""
    for number, (point, when) in enumerate(points):
        user.aws.reset()  # its time is now again
        if not killed(user, user.create, point, when):
            user.delete()
            return number
        begun = [each for each in user.life.requests if changes(each)]
        user.delete()
        assert user.aws.left() == [], f"killed {when} the last of {begun}"
    return len(points)


def deletion_is_completed(user, points):
    """Kill deletions at these points, and complete them from another process; return how many were."""
    for number, (point, when) in enumerate(points):
        user.aws.reset()
        user.create()
        if not killed(user, user.delete, point, when):
            return number
        begun = [each for each in user.life.requests if changes(each)]
        user.delete()
        assert user.aws.left() == [], f"killed {when} the last of {begun}"
    return len(points)


def creation_goes_on(user, points):
    """Kill creations at these points, and go on from another process; return how many were."""
    for number, (point, when) in enumerate(points):
        user.aws.reset()  # its time is now again
        if not killed(user, user.create, point, when):
            user.delete()
            return number
        assert user.create().status["state"] == "active"
        assert [each.id for each in user.aws.left() if each.kind == "cluster"] == [f"{NAME}/{NAME}"]
        user.delete()
        assert user.aws.left() == []
    return len(points)


EACH = [(point, when) for point in range(MOST) for when in WHEN]
ACTS = {"deleted": begun_is_deleted, "continued": creation_goes_on, "deleted on": deletion_is_completed}


@pytest.mark.parametrize("how", ACTS)
def test_what_a_killed_process_began_is_completed_by_another(user, how):
    some = [(1, "after"), (6, "before"), (9, "after")] if how == "deleted" else [(2, "after")]
    assert ACTS[how](user, some) == len(some)


@pytest.mark.slow
@pytest.mark.parametrize("how", ACTS)
def test_what_a_process_began_is_completed_wherever_it_was_killed(user, how):
    points = ACTS[how](user, EACH)
    print(f"{how}: {points} points")
    assert 10 < points < len(EACH)


def live(user, *, seed, histories):
    """Have processes create or delete, one in the midst of what another began, die, and meet trouble."""
    choose = random.Random(seed)
    for number in range(histories):
        told = []
        user.aws.reset()
        for _ in range(choose.randint(1, 3)):
            act = choose.choice([user.create, user.create, user.delete])
            life = ProcessLife(choose.randint(0, 40), choose.choice(WHEN), changes)
            if choose.random() < 0.6:
                user.trouble(choose)
            with contextlib.suppress(ProcessKilled, KitError):
                act(life)
            told.append((act.__name__, life.dies_at, life.when, str(life.requests[-1:])))
            user.aws.clock.sleep(choose.choice([0, PAUSE, 600, 5 * 3600]))
        user.clear_faults()
        user.aws.clock.sleep(PAUSE)
        user.delete()
        assert user.aws.left() == [], f"history {number} of seed {seed}: {told}"


def test_nothing_is_left_after_some_histories(user):
    live(user, seed=PARTS, histories=3)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(PARTS))
def test_nothing_is_left_after_any_history(user, seed):
    live(user, seed=seed, histories=HISTORIES // PARTS)
