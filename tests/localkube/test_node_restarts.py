"""Which containers run again, and when."""

import pytest

from localkube.kubelet.status.restart_policy import backoff, container_should_restart, crashes, duration


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


def test_back_off_doubles_to_five_minutes_and_resets_after_ten():
    assert [backoff(count) for count in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff(10_000) == 300
    assert (crashes(5, ran_for=599), crashes(5, ran_for=600)) == (6, 1)
    assert [duration(seconds) for seconds in (0, 10, 60, 3661)] == ["0s", "10s", "1m0s", "1h1m1s"]
