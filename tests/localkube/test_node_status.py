"""The status of a pod: pairs of what happened and what is reported, one file each in ``pod_status/``."""

from pathlib import Path

import pytest
import yaml

from localkube.api_client import ApiError
from localkube.kubelet.pods.pod.status_manager import is_final
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.status.pod_status import pod_status, status_patch

CASES = sorted((Path(__file__).parent / "pod_status").glob("*.yaml"))


def record(name, fields):
    last = record(name, fields["last"]) if fields.get("last") else None
    return ContainerRecord(name, **(fields | {"last": last}))


def records(entries):
    return {name: record(name, fields) for name, fields in entries.items()}


def report(case, **changes):
    arguments = {"host_ip": "10.244.254.1", "start_time": 1000.2, "now": 1010.9} | case["arguments"] | changes
    if arguments.get("override"):
        arguments["override"] = tuple(arguments["override"])
    runs = records(case["records"] | case["init_records"])
    return pod_status(case["pod"], records=runs, **arguments)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_status_is_that_of_the_upstream_kubelet(path):
    case = yaml.safe_load(path.read_text())
    assert report(case) == case["status"]


def test_a_pod_past_its_deadline_has_not_failed_while_its_containers_are_stopped():
    path = Path(__file__).parent / "pod_status" / "a_running_and_ready_pod.yaml"
    case = yaml.safe_load(path.read_text())
    assert report(case, override=("Failed", "DeadlineExceeded", ""))["phase"] == "Running"


@pytest.fixture
def running():
    return yaml.safe_load((Path(__file__).parent / "pod_status" / "a_running_and_ready_pod.yaml").read_text())


def test_a_transition_time_changes_only_with_the_condition(running):
    running["pod"]["status"] = running["status"]
    running["records"]["main"]["ready"] = False
    conditions = {c["type"]: c["lastTransitionTime"] for c in report(running, now=2000.0)["conditions"]}
    assert conditions["Ready"] == conditions["ContainersReady"] == "1970-01-01T00:33:20Z"
    assert conditions["Initialized"] == "1970-01-01T00:16:50Z"
    assert conditions["PodScheduled"] == "1970-01-01T00:16:30Z"


def test_a_patch_removes_what_no_longer_holds(running):
    before = running["pod"]
    before["status"]["conditions"].append(
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "not yet"}
    )
    before["status"] |= {"reason": "Old", "message": "old", "podIPs": [{"ip": "10.244.1.99"}]}
    patch = status_patch(before, report(running) | {"reason": "New"})
    assert patch["metadata"] == {"uid": "u"}
    assert patch["status"]["reason"] == "New"
    ready = next(c for c in patch["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", None, None)
    assert {"$patch": "delete", "ip": "10.244.1.99"} in patch["status"]["podIPs"]
    assert "qosClass" not in patch["status"]


def test_conditions_of_others_are_kept(running):
    foreign = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    running["pod"]["status"]["conditions"].append(foreign)
    status = report(running)
    assert foreign in status["conditions"]
    patched = status_patch(running["pod"], status)["status"]["conditions"]
    assert "DisruptionTarget" not in {condition["type"] for condition in patched}


@pytest.mark.parametrize(
    ("status", "message", "final"),
    [
        (404, 'pods "x" not found', True),
        (422, "is invalid", True),
        (409, "Precondition failed: UID in precondition: a, UID in object meta: b", True),
        (409, "the object has been modified; please apply your changes to the latest version", False),
        (0, "Unreachable", False),
        (500, "etcd is away", False),
    ],
)
def test_a_status_is_reported_again_unless_nobody_can_hear_it(status, message, final):
    assert is_final(ApiError(status, "", message)) is final
