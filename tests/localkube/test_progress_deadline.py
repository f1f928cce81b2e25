"""When a start is given up: not for being slow, but for standing still, ending again and again, or idling."""

import os
import signal
import subprocess
import sys
import time

import pytest

from localkube.controlplane.progress_deadline import (
    LONGEST,
    MAX_CRASHES,
    Activity,
    CrashCount,
    ProgressDeadline,
)

BUSY = "while True: pass"


def look(deadline, progress=0, *, crashes=None, **activity):
    """Look one second later."""
    return deadline.check(progress, 1.0, activity, crashes)


def seconds_until_given_up(deadline, **activity):
    for second in range(1, 10_000):
        if stuck := look(deadline, **activity):
            return second, stuck
    raise AssertionError("it waits for ever")


def test_a_busy_part_is_waited_for_much_longer_than_the_deadline():
    deadline = ProgressDeadline(10)
    assert all(look(deadline, server=1.0, etcd=0.01) is None for _ in range(100))


def test_parts_that_only_poll_are_given_up_after_the_deadline():
    second, stuck = seconds_until_given_up(ProgressDeadline(10), server=0.05, etcd=0.01)
    assert (second, stuck.part) == (10, None)
    assert "no component had work, for 10 s" in stuck.reason


def test_a_part_that_stands_still_is_named_though_others_are_busy():
    second, stuck = seconds_until_given_up(
        ProgressDeadline(10, never_idle=["etcd"]), server=1.0, etcd=0.0, manager=0.0
    )
    assert (second, stuck.part) == (10, "etcd")


def test_each_step_forward_begins_the_deadline_anew():
    deadline = ProgressDeadline(10)
    for progress in range(5):
        assert all(look(deadline, progress, server=0.01) is None for _ in range(9))
    assert look(deadline, 4, server=0.01)


def test_work_that_comes_to_nothing_is_given_up_in_the_end():
    second, stuck = seconds_until_given_up(ProgressDeadline(10), server=1.0)
    assert second == LONGEST * 10
    assert "made no progress" in stuck.reason


def test_a_part_that_ends_again_and_again_is_named_with_its_status():
    deadline = ProgressDeadline(10)
    few, many = (
        look(deadline, crashes={"etcd": CrashCount(count, 2)}, etcd=1.0) for count in (0, MAX_CRASHES)
    )
    assert few is None
    assert (many.part, "the last time with status 2" in many.reason) == ("etcd", True)


def test_ends_before_a_step_forward_are_forgiven():
    deadline = ProgressDeadline(10)
    for progress in range(5):
        crashes = {"etcd": CrashCount(progress * (MAX_CRASHES - 1), -9)}
        assert look(deadline, progress, crashes=crashes, etcd=1.0) is None


def test_an_interval_in_which_this_process_was_held_up_itself_counts_little():
    deadline = ProgressDeadline(10, never_idle=["etcd"])
    assert deadline.check(0, 3600.0, {"etcd": 0.0}) is None


@pytest.fixture
def program():
    programs = []

    def begin(source):
        programs.append(subprocess.Popen([sys.executable, "-c", source]))
        return programs[-1].pid

    yield begin
    for process in programs:
        process.kill()
        process.wait()


def test_a_busy_program_on_a_shared_core_counts_as_active(program):
    core = {min(os.sched_getaffinity(0))}
    pids = {name: [program(source)] for name, source in [("one", BUSY), ("two", BUSY)]}
    for (pid,) in pids.values():
        os.sched_setaffinity(pid, core)
    pids["asleep"] = [program("import time; print(flush=True); time.sleep(600)")]
    activity = Activity()
    time.sleep(2)
    activity.sample(pids)
    time.sleep(2)
    interval, shares = activity.sample(pids)
    assert shares["one"] > interval / 2 and shares["two"] > interval / 2
    assert shares["asleep"] < interval / 10


def test_a_stopped_program_wants_nothing(program):
    pid = program(BUSY)
    os.kill(pid, signal.SIGSTOP)
    assert os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    activity = Activity()
    activity.sample({"stopped": [pid]})
    time.sleep(0.2)
    assert activity.sample({"stopped": [pid]})[1] == {"stopped": 0.0}


def test_a_program_that_has_ended_wants_nothing(program):
    activity = Activity()
    assert activity.sample({"gone": [2**22 + 1]})[1] == {"gone": 0.0}
