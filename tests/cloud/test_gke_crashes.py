"""Whatever call the process dies at that creates or deletes: the next one completes, and nothing is left."""

import threading
from datetime import UTC, datetime

import pytest

from clouds.google.machines import MachinePool
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, discover, resources
from clouds.reconciler import reconcile
from clouds.tags import Tags

from .google.fake import PROJECT, FakeGoogle
from .simulated_clock import SimulatedClock

ZONE = "us-central1-c"
END = datetime(2026, 11, 23, tzinfo=UTC)
MOST = 400  # calls; a point beyond the last one kills nobody


class Killed(BaseException):
    """The process is dead."""


class Mortal(GcpSession):
    """A session whose process dies at one of its calls, before or after the cloud has taken it."""

    def __init__(self, *where, at: int, after: bool) -> None:
        super().__init__(*where)
        self.lives, self.after, self.lock = [at], after, threading.Lock()

    def _attempt(self, call, about):
        with self.lock:
            self.lives[0] -= 1
            left = self.lives[0]
        if left < 0 or (left == 0 and not self.after):
            raise Killed
        answer = super()._attempt(call, about)
        if left == 0:
            raise Killed
        return answer


def plan(session):
    return GkePlan(
        session, Tags("lab", "ada", "spring", END), MachinePool.of(nodes=2, accelerator="nvidia-tesla-t4")
    )


def survive(google, at, after):
    """Die at a call, create and delete; return whether there was such a call in either."""
    clock = SimulatedClock(passed=google.clock.advance)
    how = {"title": "lab", "resume": "again", "clock": clock}
    died = []
    try:
        reconcile.bring_up(resources(plan(Mortal(PROJECT, ZONE, at=at, after=after))), **how)
    except Killed:
        died.append("create")
        if at % 2:  # half of them are taken down as they stand
            reconcile.bring_up(resources(plan(GcpSession(PROJECT, ZONE))), **how)
    try:
        reconcile.take_down(discover(Mortal(PROJECT, at=at, after=after), "lab"), **how)
    except Killed:
        died.append("delete")
        reconcile.take_down(discover(GcpSession(PROJECT), "lab"), **how)
    return died


def check(at, after, monkeypatch):
    with FakeGoogle() as google:
        for name, value in google.endpoints.items():
            monkeypatch.setenv(name, value)
        died = survive(google, at, after)
        assert google.left() == [], f"call {at}, {'after' if after else 'before'} it took effect"
    return died


@pytest.mark.parametrize(("at", "after"), [(9, True), (24, True), (31, False)])
def test_some_crashes_are_survived(at, after, monkeypatch):
    assert check(at, after, monkeypatch)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_crash_at_each_call_is_survived(monkeypatch):
    points = 0
    for at in range(1, MOST):
        died = [check(at, after, monkeypatch) for after in (False, True)]
        points += sum(map(len, died))
        if not any(died):
            break
    print(f"{points} crash points survived")
    assert 150 < points < 2 * 2 * MOST
