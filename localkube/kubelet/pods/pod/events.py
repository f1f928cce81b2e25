"""The events in a pod's life: each is a function from its record to the next record and a list of actions.

Pure: what is read of clocks, files and other programs comes with the event.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.pods.pod import resize
from localkube.kubelet.pods.pod.actions import Action, Actuate, Change, Delete, EmitEvent, ReportStatus, Stop
from localkube.kubelet.pods.pod.record import Container, Outcome, PodRecord
from localkube.kubelet.status import container_state, restart_policy
from localkube.kubelet.status.conditions import is_ready
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, ContainerExit, ContainerRecord
from localkube.kubelet.status.pod_status import EVICTED, TERMINAL
from localkube.kubelet.status.restart_policy import RESTART_ALL, is_sidecar

EVICTION_GRACE_SECONDS = 1.0
START_FAILED = 128


# The pod's object.


def first_record(pod: Object, *, now: float) -> PodRecord:
    """Create the record of a pod that this kubelet sees for the first time."""
    before, (allocated, resizes) = pod.get("status") or {}, resize.reported(pod)
    start, allocated_pod = before.get("startTime"), resize.allocated_pod(pod, allocated)
    return PodRecord(
        allocated_pod,
        pod,
        {spec["name"]: Container(spec, kind) for kind, spec in container_state.containers(allocated_pod)},
        allocated=allocated,
        resizes=resizes,
        start_time=datetime.fromisoformat(start).timestamp() if start else now,
        is_new=not start,
        rejected=before.get("phase") in TERMINAL and "containerStatuses" not in before,
    )


def observed(record: PodRecord, pod: Object) -> Change:
    """Apply a newer object from the watch."""
    metadata, actions = pod["metadata"], list[Action]()
    grace, is_deleted = metadata.get("deletionGracePeriodSeconds", 30), metadata.get("deletionTimestamp")
    if is_deleted and not (grace or metadata.get("finalizers")):
        record = replace(record, is_gone=True)
    reported = (pod.get("status") or {}).get("observedGeneration")
    is_outdated = reported and reported != metadata.get("generation")
    # The node controller sets this on every pod of a node that was silent for a while.
    is_unready = pod["spec"].get("readinessGates") or not is_ready(pod)
    runs = any(container.process for container in record.containers.values())
    if not record.finished and (is_outdated or (runs and is_unready)):
        actions.append(ReportStatus())
    if is_deleted and (record.deletion_grace is None or grace < record.deletion_grace):
        record = replace(record, deletion_grace=grace)
        actions.append(Delete(grace))
    return record, actions


def specified(record: PodRecord, desired: Object, *, shortage: str | None) -> Change:
    """Apply a newer specification, or retry the allocation of the desired one.

    As in the kubelet, the back-off belongs to the definition: a new image is tried at once.

    Args:
        shortage: Why the node cannot allocate the desired resources now.
    """
    record, actions = resize.evaluate(replace(record, desired=desired), shortage)
    pod = resize.allocated_pod(desired, record.allocated)
    record = replace(record, pod=pod)
    for kind, spec in container_state.containers(pod):
        name = spec["name"]
        if before := record.containers.get(name):
            record = record.with_container(name, spec=spec)
            if spec["image"] != before.spec["image"]:
                record = record.with_container(name, crashes=0, refusals=0, is_due=True)
                record, stops = _check_image(record, name)
                actions += stops
        elif kind == EPHEMERAL:
            record = replace(record, containers={**record.containers, name: Container(spec, kind)})
    return record, [*actions, Actuate()]


# The pod's life cycle.


def rejected(record: PodRecord, reason: str, message: str) -> Change:
    """Record that the node does not admit the pod."""
    outcome = ("Failed", reason, f"Pod was rejected: {message}")
    return replace(record, rejected=True, override=outcome), [EmitEvent(reason, message, warning=True)]


def restored(record: PodRecord, address: str | None, states: Mapping[str, ContainerRecord]) -> Change:
    """Restore what an earlier kubelet has reported, or this one before the node was stopped."""
    known = {name: replace(entry, state=states.get(name)) for name, entry in record.containers.items()}
    return replace(record, address=address, containers=known), []


def update_facts(record: PodRecord, /, **facts: Any) -> Change:
    """Record facts that require no action."""
    return replace(record, **facts), []


def stopped(record: PodRecord, override: Outcome | None = None) -> Change:
    """Mark the pod for termination; the first override wins."""
    outcome = record.override if record.stopping or not override else override
    return replace(record, stopping=True, override=outcome), []


def evicted(record: PodRecord, message: str) -> Change:
    """Evict the pod, unless it is being terminated already."""
    if record.stopping:
        return record, []
    record, _ = stopped(record, (*EVICTED, message))
    return record, [EmitEvent("Evicted", message, warning=True), Stop(EVICTION_GRACE_SECONDS)]


# RestartAllContainers: all containers but ephemeral ones start again, as if they had never run.


def _restart_all(record: PodRecord) -> Change:
    """Kill all containers except ephemeral ones, without a grace period."""
    names = [name for name, entry in record.containers.items() if entry.kind != EPHEMERAL]
    for name in names:
        record = record.with_container(name, is_due=True)
    return replace(record, restarting=True), [ReportStatus(), *(Stop(0, name) for name in names)]


def removed(record: PodRecord) -> Change:
    """Reset the ended containers so that they start again."""
    for name, entry in record.containers.items():
        if entry.state and entry.kind != EPHEMERAL:
            record = record.with_container(name, state=restart_policy.removed_to_restart(entry.state))
    return record, [ReportStatus()]


# A container's start.


def starting(record: PodRecord, name: str) -> Change:
    """Record that the container is about to start."""
    return record.with_container(name, replaced=False, is_due=False), []


def refused(
    record: PodRecord, name: str, reason: str, message: str, *, permanent: bool | None = None
) -> Change:
    """Record that the container cannot be started yet.

    Args:
        permanent: Whether only another configuration can help; None if the configuration is not the reason.
    """
    if permanent is not None:
        refusals = record.containers[name].refusals + 1
        record = record.with_container(name, refusals=refusals, permanent=permanent)
    state = record.containers[name].state
    count, last = container_state.next_run(state)
    waiting = ContainerRecord(name, "waiting", reason=reason, message=message, restart_count=count, last=last)
    if reason == container_state.IMAGE_BACK_OFF and waiting == state:
        return _settled(record, name, waiting)
    text = reason if reason in container_state.IMAGE_REASONS else message
    error = _event(record, name, "Failed", f"Error: {text}")
    return _settled(record, name, waiting, error, ReportStatus())


def failed(record: PodRecord, name: str, identity: str, message: str, *, now: float) -> Change:
    """Record that the container's command cannot be executed."""
    count, last = container_state.next_run(record.containers[name].state)
    image, state = container_state.HOST_IMAGE, ContainerRecord(name, "terminated", "StartError", message)
    state = replace(state, started_at=now, finished_at=now, exit_code=START_FAILED)
    state = replace(state, restart_count=count, last=last, container_id=identity, image_id=image)
    return _settled(record, name, state, _event(record, name, "Failed", f"Error: {message}"), ReportStatus())


def attached(record: PodRecord, name: str, identity: str, *, exited: bool) -> Change:
    """Record that the container has a process."""
    early = {other: entry for other, entry in record.early.items() if other != identity}
    return replace(record, early=early).with_container(name, process=identity, exited=exited), []


def running(record: PodRecord, name: str, state: ContainerRecord, *, hook_done: bool) -> Change:
    """Record that the container runs, and that its postStart hook has succeeded, or failed and ended it."""
    probes, spec = hook_done and not record.stopping, record.containers[name].spec
    if probes:
        started = state.started or not spec.get("startupProbe")
        ready = started and (state.ready or not spec.get("readinessProbe"))
        state = replace(state, started=started, ready=ready)
    record, actions = _settled(record.with_container(name, resizing=False, refusals=0), name, state)
    record, stops = _check_image(record, name)
    return record, [*stops, *actions, Actuate(), ReportStatus()]


def _settled(
    record: PodRecord, name: str, state: ContainerRecord, *actions: EmitEvent | ReportStatus
) -> Change:
    """Set the container's state; its previous run is no longer reported."""
    before = record.containers[name].reported
    record = record.with_container(name, state=state, reported=None)
    return record, [*actions, *([ReportStatus(ended=before.container_id)] if before else [])]


# A container's run.


def probed(record: PodRecord, name: str, *, started: bool, ready: bool) -> Change:
    """Record the results of the container's startup and readiness probes."""
    state = record.containers[name].state
    assert state is not None
    return record.with_container(name, state=replace(state, started=started, ready=ready)), [ReportStatus()]


def unhealthy(record: PodRecord, name: str, kind: str) -> Change:
    """Stop the container: its liveness or startup probe has failed."""
    entry = record.containers[name]
    spec = entry.spec.get(f"{kind}Probe") or {}
    again = restart_policy.restarts_after_probe(record.pod, entry.spec)
    role, restarts = ("Init container", "") if entry.kind == INIT else ("Container", ", will be restarted")
    message = f"{role} {name} failed {kind} probe{restarts if again else ''}"
    grace = spec.get("terminationGracePeriodSeconds", record.grace)
    return record.with_container(name, replaced=again), [Stop(grace, name, message)]


def resized(record: PodRecord, name: str) -> Change:
    """Record that the container has the resources of its specification."""
    entry = record.containers[name]
    assert entry.state is not None
    state = replace(entry.state, resources=entry.spec.get("resources") or {})
    return record.with_container(name, state=state), []


def resize_restarts(record: PodRecord, name: str) -> Change:
    """Restart the container, because its resizePolicy requires that for other resources."""
    record = record.with_container(name, resizing=True)
    return _replace_run(record, name, f"Container {name} resize requires restart")


def _check_image(record: PodRecord, name: str) -> Change:
    """Replace the container's run if its image is not the specification's."""
    entry, state = record.containers[name], record.containers[name].state
    is_fixed = entry.kind == EPHEMERAL or (entry.kind == INIT and not is_sidecar(entry.spec))
    if is_fixed or not state or state.state != "running" or state.image == entry.spec["image"]:
        return record, []
    role, restarts = ("Init container", "") if entry.kind == INIT else ("Container", ", will be restarted")
    return _replace_run(record, name, f"{role} {name} definition changed{restarts}")


def _replace_run(record: PodRecord, name: str, message: str) -> Change:
    if record.stopping or not record.containers[name].is_running:
        return record, []
    return record.with_container(name, replaced=True), [Stop(record.grace, name, message)]


# A container's end.


def exited(record: PodRecord, entry: dict[str, Any]) -> Change:
    """Record the exit of a process, which the runtime has reported."""
    for name, container in record.containers.items():
        if container.process == entry["id"]:
            return record.with_container(name, exited=True), []
    return replace(record, early={**record.early, entry["id"]: entry}), []


def ended(
    record: PodRecord, name: str, result: ContainerExit, *, message: str, out_of_memory: bool
) -> Change:
    """Record that the container's run has ended; its writable layer is being removed."""
    entry = record.containers[name]
    assert entry.state is not None
    # As with a kubelet, whose pod worker replaces a container before it reports again.
    reported = entry.state if entry.replaced and record.is_active else entry.reported
    state = container_state.ended(entry.state, result, message=message, out_of_memory=out_of_memory)
    record = record.with_container(name, state=state, reported=reported, process="", exited=False)
    record = replace(record, clearing=record.clearing + 1)
    return record, [] if reported else [ReportStatus(ended=state.container_id)]


def run_over(record: PodRecord, name: str) -> Change:
    """Decide whether the container starts again, and when."""
    entry = record.containers[name]
    state, record = entry.state, record.with_container(name, delay=None)
    if state is None or not record.is_active:
        return record, []
    if state.state == "waiting":
        delay = restart_policy.config_backoff(entry.refusals, permanent=entry.permanent)
        return record.with_container(name, delay=delay), []
    if not entry.replaced and restart_policy.restart_action(entry.spec, state.exit_code) == RESTART_ALL:
        return _restart_all(record)
    again = entry.replaced or restart_policy.container_should_restart(record.pod, entry.spec, state.exit_code)
    return _back_off(record, name, state) if again and entry.kind != EPHEMERAL else (record, [])


def _back_off(record: PodRecord, name: str, state: ContainerRecord) -> Change:
    assert state.finished_at is not None
    ran_for = state.finished_at - (state.started_at or state.finished_at)
    count = restart_policy.crashes(record.containers[name].crashes, ran_for=ran_for)
    delay = restart_policy.backoff(count)
    record = record.with_container(name, crashes=count, delay=delay)
    waiting = restart_policy.waiting_to_restart(record.pod, state, delay)
    if not delay:
        # It is about to start: no back-off should be shown in between.
        waiting = replace(waiting, reason="ContainerCreating", message="")
        return record.with_container(name, state=waiting), []
    event = _event(record, name, "BackOff", f"Back-off restarting failed container {name}")
    return _settled(record, name, waiting, event, ReportStatus())


def _event(record: PodRecord, name: str, reason: str, message: str) -> EmitEvent:
    return EmitEvent(reason, message, warning=True, about=f"spec.{record.containers[name].kind}{{{name}}}")
