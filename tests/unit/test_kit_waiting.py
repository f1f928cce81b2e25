import itertools

import pytest

from kitlib.errors import BadInput, ClusterUnreachable, Interrupted, Rejected, WaitTimeout
from kitlib.k8s.wait import ErrorGrace, wait

ARGUMENTS = {"what": "the pods to run", "about": 'run "digits"', "resume": "run.wait()"}


def test_every_state_on_the_way_is_reported_in_words():
    reports = []
    final = wait([1, 2], until=(2).__eq__, describe="{} pods".format, report=reports.append, **ARGUMENTS)
    assert (final, reports) == (2, ["1 pods"])


def test_a_timeout_tells_the_last_state_seen():
    clock = itertools.count().__next__
    with pytest.raises(
        WaitTimeout, match="(?s)timed out after 3 s waiting for the pods to run. Last seen: 0 of 4.*run.wait"
    ):
        wait(itertools.repeat("0 of 4"), until=lambda state: False, timeout=3, clock=clock, **ARGUMENTS)


def test_each_change_restarts_the_standstill_limit():
    clock = itertools.count().__next__
    states = itertools.chain(*(itertools.repeat(number, 170 + 60 * number) for number in range(5)))
    assert wait(states, until=lambda state: state == 4, standstill=420, clock=clock, **ARGUMENTS) == 4


def test_a_standstill_tells_for_how_long_nothing_has_changed():
    clock = itertools.count().__next__
    states = itertools.chain(["0 of 4", "1 of 4"], itertools.repeat("2 of 4"))
    with pytest.raises(
        WaitTimeout,
        match="(?s)no progress for 180 s while waiting for the pods to run. Last seen: 2 of 4.*run.wait",
    ):
        wait(states, until=lambda state: False, clock=clock, **ARGUMENTS)


def test_an_interruption_says_how_to_go_on():
    def states():
        yield "1 of 4"
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="(?s)continues. Last seen: 1 of 4.*try:   run.wait"):
        wait(states(), until=lambda state: False, timeout=3, **ARGUMENTS)


@pytest.mark.parametrize("timeout", [0, -1, "60", True, float("nan")])
def test_a_timeout_that_is_none_is_bad_input(timeout):
    with pytest.raises(BadInput, match="above 0"):
        wait([1], until=bool, timeout=timeout, **ARGUMENTS)


def test_an_error_that_may_pass_is_borne_for_a_while_and_no_longer():
    clock = iter([0, 5, 10, 10, 21]).__next__
    patience = ErrorGrace(grace=10, clock=clock)
    unreachable = ClusterUnreachable("refused", about="cluster", fix="wait")
    patience.failed(unreachable)
    patience.succeeded()
    patience.failed(unreachable)
    with pytest.raises(ClusterUnreachable):
        patience.failed(unreachable)


@pytest.mark.parametrize(("status", "passes"), [(403, False), (404, False), (429, True), (503, True)])
def test_a_refusal_passes_only_if_the_server_was_busy_or_broken(status, passes):
    error = Rejected("no", about="Job", fix="-", status=status)
    assert error.passing == passes
    if not passes:
        with pytest.raises(Rejected):
            ErrorGrace().failed(error)
