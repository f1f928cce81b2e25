"""The pods of the cluster's own programs say how often each was started again."""

from pathlib import Path

from localkube.kubelet.pods.component_pods import Component, _observe

POD = {"spec": {"containers": [{"name": "main", "image": "registry.k8s.io/metrics-server"}]}}


def running(number, status=None):
    return [{"id": f"metrics-server.{number}", "status": status, "started": 1.0}]


def test_the_first_start_of_a_program_that_begins_late_is_no_restart():
    component = Component("metrics-server", "metrics-server", Path("log"), POD)
    counts = []
    for processes in ([], running(1), running(1), running(1, status=9), running(2)):
        _observe(component, processes)
        counts.append(component.records["metrics-server"].restart_count)
    assert counts == [0, 0, 0, 0, 1]
