"""What a kubelet takes up of a pod whose containers have ended without its knowledge."""

from types import SimpleNamespace

import pytest

from localkube.kubelet.pods.pod import events
from localkube.kubelet.pods.pod.driver import PodDriver
from localkube.kubelet.pods.pod.reattach import restore
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.pods.pod_manager import PodManager

POD = {
    "metadata": {"uid": "u"},
    "spec": {"nodeName": "node-0", "containers": [{"name": "main", "image": "i"}]},
}
WAITING = {"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}
STARTED = {"startedAt": "2026-01-01T00:00:00Z", "containerID": "trainyard://u.main.0"}
RUNNING = {"state": {"running": STARTED}, "restartCount": 0}
ENDED = STARTED | {"finishedAt": "2026-01-01T00:00:01Z", "exitCode": 0, "reason": "Completed"}
COMPLETED = {"state": {"terminated": ENDED}, "restartCount": 0}
BACK_OFF = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": ENDED | {"exitCode": 1}},
    "restartCount": 0,
}


class Driver(PodDriver):
    """One that carries nothing out."""

    perform = status = apply_newer = None

    def __init__(self, pod, runtime):
        super().__init__(events.first_record(pod, now=0), node=None, runtime=runtime)


@pytest.mark.parametrize(
    ("status", "logged", "state", "count"),
    [
        (WAITING, 0, None, None),
        (WAITING, 1, "terminated", 0),
        (RUNNING, 1, "terminated", 0),
        (COMPLETED, 1, "terminated", 0),
        (COMPLETED, 2, "terminated", 1),
        (BACK_OFF, 1, "waiting", 0),
        (BACK_OFF, 2, "terminated", 1),
    ],
)
def test_a_run_that_ended_with_its_node_counts_though_the_api_never_heard_of_it(
    tmp_path, status, logged, state, count
):
    runtime = SimpleNamespace(files=PodFiles(tmp_path, tmp_path, None, None, None, None))
    for number in range(logged):
        path = runtime.files.log_path("u", "main", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    worker = Driver(POD | {"status": {"containerStatuses": [{"name": "main", **status}]}}, runtime)
    restore(worker)
    record = worker.record.states.get("main")
    assert (record and record.state) == state
    assert (record and record.restart_count) == count
    if logged == 2:
        assert record.reason == "ContainerStatusUnknown"
        assert record.last.restart_count == 0


def test_a_pod_that_changes_while_its_node_returns_is_restored_before_it_starts(monkeypatch, tmp_path):
    runtime = SimpleNamespace(files=PodFiles(tmp_path, tmp_path, None, None, None, None))
    pod = POD | {"status": {"containerStatuses": [{"name": "main", **RUNNING}]}}
    started = []
    worker = Driver(pod, runtime)
    worker.start = lambda: started.append(worker.record.states["main"].state)
    worker.pod_updated = lambda pod: None
    manager = object.__new__(PodManager)
    manager._nodes, manager._workers = {"node-0": SimpleNamespace(is_reachable=True)}, {}
    monkeypatch.setattr(manager, "_new_worker", lambda pod: worker)
    manager._changed("MODIFIED", pod, None)
    assert started == ["terminated"]
