"""While a run waits for long, `wait` shows the first cause in place of what the pods say."""

import pytest

from kitlib.causes import Cause, Diagnosis
from kitlib.errors import ClusterUnreachable
from kitlib.runs.status import RunStatus
from kitlib.runs.waiting import WaitReason

PENDING = RunStatus("Pending", "ContainerCreating", desired=1)
CAUSE = Cause(kind="MissingSecret", who="rank 0", what="cannot start", fix="create it")


@pytest.fixture
def clock():
    return [0.0]


def reason(clock, causes=(CAUSE,)):
    return WaitReason(lambda: Diagnosis("x", "Pending", tuple(causes)), clock=lambda: clock[0])


def test_the_cause_is_named_after_ten_seconds_without_a_change(clock):
    wait = reason(clock)
    assert wait.explain(PENDING).reason == "ContainerCreating"
    clock[0] = 10.0
    assert str(wait.explain(PENDING)) == "Pending: rank 0 cannot start"


def test_a_change_begins_the_wait_anew_and_an_end_is_shown_as_it_is(clock):
    wait = reason(clock)
    wait.explain(PENDING)
    clock[0] = 12.0
    assert wait.explain(RunStatus("Pending", "one runs", running=1)).reason == "one runs"
    clock[0] = 99.0
    failed = RunStatus("Failed", "exit code 1")
    assert wait.explain(failed) is failed


def test_without_a_cause_or_without_the_api_the_status_stays(clock):
    def unreachable():
        raise ClusterUnreachable("no answer", about="x", fix="wait")

    for wait in (reason(clock, ()), WaitReason(unreachable, clock=lambda: clock[0])):
        clock[0] = 0.0
        wait.explain(PENDING)
        clock[0] = 11.0
        assert wait.explain(PENDING) == PENDING
