"""Compute a PodStatus from the pod's specification and its containers' records.

Pure, so that each rule of the kubelet has a test of input and output. Times are seconds since the epoch.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.status import conditions
from localkube.kubelet.status.container_state import (
    EPHEMERAL,
    INIT,
    STATUSES,
    ContainerRecord,
    exit_reason,
)
from localkube.kubelet.status.restart_policy import container_should_restart, is_sidecar, may_restart_all

TERMINAL = ("Succeeded", "Failed")
EVICTED = ("Failed", "Evicted")
DEADLINE_EXCEEDED = (
    "Failed",
    "DeadlineExceeded",
    "Pod was active on the node longer than the specified deadline",
)
NODE_SHUTDOWN = ("Failed", "Terminated", "Pod was terminated in response to imminent node shutdown.")
# A strategic merge patch merges these lists by these keys; other lists are replaced.
_MERGE_KEYS = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"}


def timestamp(seconds: float) -> str:
    """Format a time as the API does, in whole seconds.

    Example:
        >>> timestamp(0)
        '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(
    pod: Object,
    *,
    records: Mapping[str, ContainerRecord],
    pod_ip: str | None,
    host_ip: str,
    start_time: float,
    now: float,
    override: tuple[str, str, str] | None = None,
    terminal: bool = False,
    resizes: Sequence[Object] = (),
    devices: Mapping[str, Sequence[Object]] = {},  # noqa: B006
    restarting: bool = False,
) -> dict[str, Any]:
    """Compute the v1.PodStatus to report.

    Args:
        pod: The v1.Pod with its latest status; fields that are not computed here are kept.
        records: The records of all containers, by name; a container without a record waits to be created.
        pod_ip: None before the pod's network exists and after its removal; a known address is kept.
        start_time: When the kubelet first saw the pod.
        override: Phase, reason and message in place of the computed ones once no container runs.
        terminal: No container will be started again, whatever the restart policy: the pod is being deleted,
            or was overridden, and all its processes have ended.
        resizes: These and ``restarting`` are those of ``conditions.pod_conditions``.
    """
    address = pod_ip or (pod.get("status") or {}).get("podIP")
    init_statuses, statuses, ephemeral_statuses = (_statuses(pod, kind, records) for kind in STATUSES)
    for status in statuses:
        if devices.get(status["name"]):
            status["allocatedResourcesStatus"] = list(devices[status["name"]])
    by_name = {status["name"]: status for status in (*init_statuses, *statuses, *ephemeral_statuses)}
    phase, reason, message = _outcome(pod, by_name, terminal, override)
    reported: dict[str, Any] = {
        "phase": phase,
        "conditions": conditions.pod_conditions(
            pod,
            phase=phase,
            statuses=statuses,
            init_statuses=init_statuses,
            sandbox=bool(pod_ip),
            now=timestamp(now),
            evicted=message if reason in (EVICTED[1], NODE_SHUTDOWN[1]) else "",
            resizes=resizes,
            restarting=restarting,
        ),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "containerStatuses": statuses,
    }
    return reported | _present(
        initContainerStatuses=init_statuses,
        ephemeralContainerStatuses=ephemeral_statuses,
        podIP=address,
        podIPs=[{"ip": address}] if address else [],
        reason=reason,
        message=message,
        **_kept(pod, start_time),
    )


def rejected_status(
    pod: Object, *, override: tuple[str, str, str] | None, start_time: float
) -> dict[str, Any]:
    """Compute the v1.PodStatus of a pod that its node does not admit: no container was created.

    Source: rejectPod in pkg/kubelet/kubelet.go
    """
    phase, reason, message = _outcome(pod, {}, True, override)
    return _present(phase=phase, reason=reason, message=message, **_kept(pod, start_time))


def _kept(pod: Object, start_time: float) -> dict[str, Any]:
    before = pod.get("status") or {}
    return {
        "startTime": before.get("startTime") or timestamp(start_time),
        "qosClass": before.get("qosClass"),
        "observedGeneration": pod["metadata"].get("generation"),
    }


def status_patch(pod: Object, status: Object) -> dict[str, Any] | None:
    """Compute the strategic merge patch to ``status``; None when nothing changes.

    Send it to ``…/pods/<name>/status``. It carries the uid, so a pod of the same name that came later is not
    touched; fields and conditions that the kubelet does not own stay as they are on the server.
    """
    before = pod.get("status") or {}
    changes: dict[str, Any] = {}
    for key in [*status, *(key for key in ("reason", "message") if key in before and key not in status)]:
        old, new = before.get(key), status.get(key)
        if key in _MERGE_KEYS:
            entries = _merge_entries(old or [], new or [], _MERGE_KEYS[key])
            if entries:
                changes[key] = entries
        elif old != new:
            changes[key] = new
    if not changes:
        return None
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": changes}


def phase_of(pod: Object, statuses: Mapping[str, Object], *, terminal: bool = False) -> str:
    """Compute the pod's phase from its containers' statuses, by name; none ends before its last container.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase
    """
    sidecars = [c for c in pod["spec"].get(INIT) or [] if is_sidecar(c)]
    side_containers = [c["name"] for c in (*sidecars, *(pod["spec"].get(EPHEMERAL) or []))]
    running = sum("running" in statuses[name]["state"] for name in side_containers if name in statuses)
    initialisation = _init_phase(pod, statuses)
    if may_restart_all(pod) and conditions.was_initialised(pod):
        initialisation = None  # it does not count again when all containers are restarted
    if initialisation:
        return "Pending" if running else initialisation
    ended = 0
    failed = restarting = False
    for container in pod["spec"]["containers"]:
        status = statuses.get(container["name"]) or {"state": {"waiting": {}}}
        end = _end(status)
        if "running" in status["state"]:
            running += 1
        elif end is None:
            return "Pending"
        else:
            ended += 1
            failed = failed or end["exitCode"] != 0
            # What waits after its exit is restarted, whatever its exit code: a probe may have ended it.
            again = "waiting" in status["state"] or container_should_restart(pod, container, end["exitCode"])
            restarting = restarting or again
    if running or not ended or (restarting and not terminal):
        return "Running"
    return "Failed" if failed else "Succeeded"


def _init_phase(pod: Object, statuses: Mapping[str, Object]) -> str | None:
    """Pending or Failed while init containers decide the phase, else None."""
    main = [statuses.get(container["name"]) for container in pod["spec"]["containers"]]
    initialised = any(status and _has_run(status) for status in main)
    pending = False
    for container in pod["spec"].get("initContainers") or []:
        status = statuses.get(container["name"]) or {"state": {"waiting": {}}}
        end = _end(status)
        if is_sidecar(container):
            waits = end is None and not status.get("started")
            pending = pending or (waits and not initialised)
        elif "running" in status["state"] or end is None:
            pending = True
        elif end["exitCode"] != 0:
            if not container_should_restart(pod, container, end["exitCode"]):
                return "Failed"
            pending = True
    return "Pending" if pending else None


def _outcome(
    pod: Object, statuses: Mapping[str, Object], terminal: bool, override: tuple[str, str, str] | None
) -> tuple[str, str, str]:
    before = pod.get("status") or {}
    if before.get("phase") in TERMINAL:
        return before["phase"], before.get("reason", ""), before.get("message", "")
    if override and (terminal or not any("running" in status["state"] for status in statuses.values())):
        return override
    phase = phase_of(pod, statuses, terminal=terminal)
    if phase == before.get("phase"):
        return phase, before.get("reason", ""), before.get("message", "")
    return phase, "", ""


def _statuses(pod: Object, kind: str, records: Mapping[str, ContainerRecord]) -> list[dict[str, Any]]:
    creating = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
    waiting = ContainerRecord("", "waiting", reason=creating)
    return [
        _status(container, records.get(container["name"], waiting), kind=kind)
        for container in pod["spec"].get(kind) or []
    ]


def _status(container: Object, record: ContainerRecord, *, kind: str) -> dict[str, Any]:
    running = record.state == "running"
    ready = running and record.ready and kind != EPHEMERAL
    if kind == INIT and not is_sidecar(container):
        ready = record.state == "terminated" and record.exit_code == 0
    status = {
        "name": container["name"],
        "state": _state(record),
        "lastState": _state(record.last) if record.last else {},
        "ready": ready,
        "restartCount": record.restart_count,
        "image": record.image or container.get("image", ""),
        "imageID": record.image_id,
    }
    allocated = container.get("resources") or {}
    status["resources"] = dict(allocated if record.resources is None or not running else record.resources)
    if allocated.get("requests"):
        status["allocatedResources"] = allocated["requests"]
    if kind != EPHEMERAL:
        status["started"] = running and record.started
    if record.user and record.state != "waiting":
        status["user"] = dict(record.user)
    if container.get("volumeMounts"):
        status["volumeMounts"] = [_volume_mount(mount) for mount in container["volumeMounts"]]
    identity = record.container_id or (record.last.container_id if record.last else "")
    if identity:
        status["containerID"] = _identity(identity)
    return status


def _volume_mount(mount: Object) -> dict[str, Any]:
    status = {"name": mount["name"], "mountPath": mount["mountPath"]}
    if mount.get("readOnly"):
        recursive = mount.get("recursiveReadOnly") in ("Enabled", "IfPossible")
        status |= {"readOnly": True, "recursiveReadOnly": "Enabled" if recursive else "Disabled"}
    return status


def _state(record: ContainerRecord) -> dict[str, Any]:
    if record.state == "waiting":
        return {"waiting": _present(reason=record.reason, message=record.message)}
    if record.state == "running":
        return {"running": _present(startedAt=_time(record.started_at))}
    fields = _present(
        reason=record.reason or exit_reason(record.exit_code or 0, record.signal),
        message=record.message,
        startedAt=_time(record.started_at),
        finishedAt=_time(record.finished_at),
        containerID=_identity(record.container_id) if record.container_id else "",
    )
    return {"terminated": {"exitCode": record.exit_code or 0} | fields}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


def _identity(container_id: str) -> str:
    return container_id if "://" in container_id else f"trainyard://{container_id}"


def _end(status: Object) -> Object | None:
    """Find the terminated state that counts: the current one, or the last one while waiting to restart."""
    state = status["state"]
    if "terminated" in state:
        return state["terminated"]
    return (status.get("lastState") or {}).get("terminated") if "waiting" in state else None


def _has_run(status: Object) -> bool:
    return "waiting" not in status["state"] or _end(status) is not None


def _merge_entries(old: list[Object], new: list[Object], key: str) -> list[dict[str, Any]]:
    known = {entry[key]: entry for entry in old}
    entries = []
    for entry in new:
        previous = known.pop(entry[key], {})
        if previous != entry:
            entries.append({name: None for name in previous if name not in entry} | dict(entry))
    entries += [
        {"$patch": "delete", key: removed}
        for removed in known
        if key == "ip" or removed in conditions.RESIZES
    ]
    return entries
