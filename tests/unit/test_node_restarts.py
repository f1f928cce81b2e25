"""Which containers run again, and when."""

import pytest

from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.status.restart_policy import (
    backoff,
    container_should_restart,
    crashes,
    duration,
    should_restart,
    waiting_to_restart,
)


@pytest.mark.parametrize(
    ("policy", "after_success", "after_failure"),
    [("Always", True, True), ("OnFailure", False, True), ("Never", False, False)],
)
def test_the_policy_decides(policy, after_success, after_failure):
    assert should_restart(policy, 0) is after_success
    assert should_restart(policy, 1) is after_failure


@pytest.mark.parametrize(
    ("policy", "container", "exit_code", "restarts"),
    [
        ("Always", {"name": "init"}, 0, False),
        ("Always", {"name": "init"}, 1, True),
        ("Never", {"name": "init"}, 1, False),
        ("Never", {"name": "init", "restartPolicy": "Always"}, 0, True),
        ("Never", {"name": "main", "restartPolicy": "OnFailure"}, 1, True),
        ("Always", {"name": "main"}, 0, True),
    ],
)
def test_init_containers_and_sidecars_have_rules_of_their_own(policy, container, exit_code, restarts):
    init = [container] if container["name"] == "init" else []
    pod = {"spec": {"restartPolicy": policy, "initContainers": init, "containers": [{"name": "main"}]}}
    assert container_should_restart(pod, container, exit_code) is restarts


def test_a_rule_on_exit_codes_comes_first():
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    container = {"name": "main", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    pod = {"spec": {"containers": [container]}}
    assert container_should_restart(pod, container, 42)
    assert not container_should_restart(pod, container, 1)
    rule["exitCodes"]["operator"] = "NotIn"
    assert container_should_restart(pod, container, 1)


def test_the_wait_doubles_from_ten_seconds_to_five_minutes():
    assert [backoff(count) for count in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff(10_000) == 300


def test_ten_minutes_without_a_crash_are_forgiven():
    assert crashes(5, ran_for=599) == 6
    assert crashes(5, ran_for=600) == 1


def test_a_waiting_container_remembers_the_run_that_ended():
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
    earlier = ContainerRecord("main", "terminated", exit_code=2, container_id="c0")
    ended = ContainerRecord("main", "terminated", reason="Error", exit_code=1, restart_count=1, last=earlier)
    waiting = waiting_to_restart(pod, ended, 80)
    assert waiting.message == "back-off 1m20s restarting failed container=main pod=p_n(u)"
    assert (waiting.state, waiting.reason, waiting.restart_count) == ("waiting", "CrashLoopBackOff", 1)
    assert (waiting.last.exit_code, waiting.last.last) == (1, None)


def test_durations_read_as_kubernetes_prints_them():
    assert [duration(seconds) for seconds in (0, 10, 60, 3661)] == ["0s", "10s", "1m0s", "1h1m1s"]
