"""What follows from an event in a pod's life: tables of record, event, next record and actions."""

from dataclasses import replace
from functools import partial

import pytest

from localkube.kubelet.pods.pod import events, resize
from localkube.kubelet.pods.pod.actions import Actuate, Allocate, Delete, EmitEvent, ReportStatus, Stop
from localkube.kubelet.pods.pod.record import Container
from localkube.kubelet.status.container_state import ContainerExit, ContainerRecord

RUNNING = ContainerRecord("main", "running", started_at=100.0, container_id="u.main.0", image="app:1")
WAITING = ContainerRecord("main", "waiting", reason="ErrImagePull", message="no app")
OVER = {"process": "", "exited": False, "clearing": 1}
ON_7 = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}
LIVENESS = {"livenessProbe": {"terminationGracePeriodSeconds": 3}}
NEW = {"name": "main", "image": "app:2"}
ABOUT = "spec.containers{main}"


def pod(metadata=None, main=None, **spec):
    containers = [{"name": "main", "image": "app:1"} | (main or {})]
    meta = {"name": "p", "namespace": "n", "uid": "u", "generation": 1} | (metadata or {})
    return {"metadata": meta, "spec": {"containers": containers, "terminationGracePeriodSeconds": 20} | spec}


def record(known=None, *, main=None, spec=None, **facts):
    """A pod of one container, of which the fields of ``known`` are so."""
    before = replace(events.first_record(pod(main=main, **(spec or {})), now=50.0), **facts)
    return before.with_container("main", **(known or {}))


def ended(code, **fields):
    return replace(RUNNING, state="terminated", exit_code=code, finished_at=101.0, ready=False, **fields)


def end(code):
    result = ContainerExit(code, None, 101.0)
    return partial(events.ended, name="main", result=result, message="", out_of_memory=False)


def run(**fields):
    return {"state": RUNNING, "process": "u.main.0"} | fields


# Each row: the record, the event, what is other in it or in its container afterwards, the actions.
ROWS = {
    "an evicted pod is stopped at once, with its reason": (
        record(),
        partial(events.evicted, message="too much"),
        {"stopping": True, "override": ("Failed", "Evicted", "too much")},
        [EmitEvent("Evicted", "too much", warning=True), Stop(1.0)],
    ),
    "a pod that ends is not evicted": (record(stopping=True), partial(events.evicted, message=""), {}, []),
    "the first reason to stop counts": (
        record(stopping=True, override=("Failed", "Evicted", "")),
        partial(events.stopped, override=("Failed", "Terminated", "")),
        {},
        [],
    ),
    "what its node does not admit has failed": (
        record(),
        partial(events.rejected, reason="OutOfcpu", message="no cpu"),
        {"rejected": True, "override": ("Failed", "OutOfcpu", "Pod was rejected: no cpu")},
        [EmitEvent("OutOfcpu", "no cpu", warning=True)],
    ),
    "a deletion has its grace period": (
        record(),
        partial(events.observed, pod=pod({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 9})),
        {"deletion_grace": 9},
        [Delete(9)],
    ),
    "a deletion with as much grace as before is none": (
        record(deletion_grace=9),
        partial(events.observed, pod=pod({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 9})),
        {},
        [],
    ),
    "a pod without grace and finalizers is forgotten by the API": (
        record(deletion_grace=9),
        partial(events.observed, pod=pod({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 0})),
        {"deletion_grace": 0, "is_gone": True},
        [Delete(0)],
    ),
    "the node controller's word on a pod that runs is answered": (
        record(run()),
        partial(events.observed, pod=pod()),
        {},
        [ReportStatus()],
    ),
    "a start that an image delays is tried again": (
        record(),
        partial(events.refused, name="main", reason="ErrImagePull", message="no app", permanent=False),
        {"state": WAITING, "refusals": 1},
        [EmitEvent("Failed", "Error: ErrImagePull", warning=True, about=ABOUT), ReportStatus()],
    ),
    "the same back-off of an image is reported once": (
        record({"state": replace(WAITING, reason="ImagePullBackOff")}),
        partial(events.refused, name="main", reason="ImagePullBackOff", message="no app", permanent=False),
        {"refusals": 1},
        [],
    ),
    "an API that does not answer is no refusal": (
        record({"refusals": 3}),
        partial(events.refused, name="main", reason="CreateContainerConfigError", message="503"),
        {"state": ContainerRecord("main", "waiting", "CreateContainerConfigError", "503")},
        [EmitEvent("Failed", "Error: 503", warning=True, about=ABOUT), ReportStatus()],
    ),
    "a container without a startup probe has started with its process": (
        record(run(state=None, refusals=2, resizing=True)),
        partial(events.running, name="main", state=RUNNING, hook_done=True),
        {"state": replace(RUNNING, started=True, ready=True), "refusals": 0, "resizing": False},
        [Actuate(), ReportStatus()],
    ),
    "one with probes waits for them": (
        record(run(state=None), main={"startupProbe": {"exec": {}}}),
        partial(events.running, name="main", state=RUNNING, hook_done=True),
        {"state": RUNNING},
        [Actuate(), ReportStatus()],
    ),
    "a run of another image is replaced": (
        record(run(state=None), main=NEW),
        partial(events.running, name="main", state=RUNNING, hook_done=False),
        {"state": RUNNING, "replaced": True},
        [Stop(20, "main", "Container main definition changed, will be restarted"), Actuate(), ReportStatus()],
    ),
    "a changed image ends back-off and run": (
        record(run(crashes=4, refusals=2)),
        partial(events.specified, desired=pod(main=NEW), shortage=None),
        {
            "crashes": 0,
            "refusals": 0,
            "is_due": True,
            "replaced": True,
            "spec": NEW,
        },
        [Stop(20, "main", "Container main definition changed, will be restarted"), Actuate()],
    ),
    "a failed liveness probe ends the run, whatever the policy of its exit code": (
        record(
            run(),
            main=LIVENESS,
            spec={"restartPolicy": "OnFailure"},
        ),
        partial(events.unhealthy, name="main", kind="liveness"),
        {"replaced": True},
        [Stop(3, "main", "Container main failed liveness probe, will be restarted")],
    ),
    "an exit that comes before the answer to the start is remembered": (
        record(),
        partial(events.exited, entry={"id": "u.main.0"}),
        {"early": {"u.main.0": {"id": "u.main.0"}}},
        [],
    ),
    "it is the process's once that is known": (
        record(early={"u.main.0": {"id": "u.main.0"}}),
        partial(events.attached, name="main", identity="u.main.0", exited=True),
        {"early": {}, "process": "u.main.0", "exited": True},
        [],
    ),
    "an end is reported, and the runtime forgets it": (
        record(run(exited=True)),
        end(1),
        OVER | {"state": ended(1, reason="Error")},
        [ReportStatus("u.main.0")],
    ),
    "the end of a run that is replaced is reported with the next one's state": (
        record(run(exited=True, replaced=True)),
        end(0),
        {
            "state": ended(0, reason="Completed"),
            "process": "",
            "exited": False,
            "clearing": 1,
            "reported": RUNNING,
        },
        [],
    ),
    "the first restart is at once": (
        record({"state": ended(1)}),
        partial(events.run_over, name="main"),
        {
            "state": ContainerRecord(
                "main", "waiting", "ContainerCreating", container_id="u.main.0", image="app:1", last=ended(1)
            ),
            "crashes": 1,
            "delay": 0.0,
        },
        [],
    ),
    "what ended as its policy wants does not run again": (
        record({"state": ended(0)}, spec={"restartPolicy": "OnFailure"}),
        partial(events.run_over, name="main"),
        {},
        [],
    ),
    "a container that could not be started is tried again": (
        record({"state": WAITING, "refusals": 2}),
        partial(events.run_over, name="main"),
        {"delay": 4.0},
        [],
    ),
    "nothing runs again in a pod that ends": (
        record({"state": ended(1), "delay": 0.0}, stopping=True),
        partial(events.run_over, name="main"),
        {"delay": None},
        [],
    ),
    "a rule can start all containers again": (
        record({"state": ended(7)}, main={"restartPolicyRules": [ON_7]}),
        partial(events.run_over, name="main"),
        {"restarting": True, "is_due": True},
        [ReportStatus(), Stop(0, "main")],
    ),
}
FIELDS = {*Container.__dataclass_fields__}


@pytest.mark.parametrize("row", ROWS)
def test_a_record_an_event_and_what_follows(row):
    before, event, changes, actions = ROWS[row]
    of_pod = {name: value for name, value in changes.items() if name not in FIELDS}
    of_container = {name: value for name, value in changes.items() if name in FIELDS}
    after, following = event(before)
    if "pod" not in changes:  # a newer specification is in the record as it is
        of_pod |= {"pod": after.pod, "desired": after.desired}
    assert after == replace(before, **of_pod).with_container("main", **of_container)
    assert following == actions


def test_the_second_end_in_a_row_has_a_back_off():
    after, actions = events.run_over(record({"state": ended(1), "crashes": 1, "reported": RUNNING}), "main")
    main = after.containers["main"]
    assert (main.state.reason, main.delay, main.crashes, main.reported) == ("CrashLoopBackOff", 10.0, 2, None)
    event = EmitEvent("BackOff", "Back-off restarting failed container main", warning=True, about=ABOUT)
    assert actions == [event, ReportStatus(), ReportStatus(ended="u.main.0")]


def test_a_pod_is_quiet_once_what_its_containers_wrote_is_gone():
    pods = [record(), record(run()), record(clearing=1)]
    assert [before.is_quiet for before in pods] == [True, False, False]


def cpu(limit):
    return {"resources": {"limits": {"cpu": limit}, "requests": {"cpu": limit}}}


def kinds(actions):
    return [action.reason if isinstance(action, EmitEvent) else type(action).__name__ for action in actions]


def test_a_resize_waits_for_room_is_allocated_and_completed():
    desired = pod({"generation": 2}, main=cpu("2"))
    before = record(main=cpu("1"))
    waiting, actions = events.specified(before, desired, shortage="no cpu")
    assert kinds(actions) == ["ResizeDeferred", "Allocate", "ReportStatus", "Actuate"]
    assert actions[1] == Allocate(actions[1].requested, is_deferred=True)
    assert waiting.resizes[resize.PENDING]["message"] == "no cpu"
    assert waiting.pod["spec"] == before.pod["spec"], "its containers keep to what is allocated"
    assert kinds(events.specified(waiting, desired, shortage="no cpu")[1]) == ["Allocate", "Actuate"]
    started, actions = events.specified(waiting, desired, shortage=None)
    assert kinds(actions) == ["ResizeStarted", "Allocate", "ReportStatus", "Actuate"]
    assert started.pod["spec"] == desired["spec"]
    failed, actions = resize.failed(started, "too little")
    assert kinds(actions) == ["ResizeError", "ReportStatus"]
    assert kinds(resize.failed(failed, "too little")[1]) == ["ReportStatus"]
    assert resize.tried(failed, done=False) == (failed, [ReportStatus()])
    completed, actions = resize.tried(failed, done=True)
    assert (completed.resizes, kinds(actions)) == ({}, ["ResizeCompleted", "ReportStatus"])


def test_a_resize_that_is_taken_back_is_none():
    waiting, _ = events.specified(
        record(main=cpu("1")), pod({"generation": 2}, main=cpu("2")), shortage="no cpu"
    )
    after, actions = events.specified(waiting, pod({"generation": 3}, main=cpu("1")), shortage=None)
    assert (after.resizes, actions) == ({}, [ReportStatus(), Actuate()])
