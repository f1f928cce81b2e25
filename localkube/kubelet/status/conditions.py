"""Pod conditions: PodScheduled, PodReadyToStartContainers, Initialized, ContainersReady, Ready.

Pure. Transition times change only with the status; conditions of other owners (readiness gates,
DisruptionTarget) are kept.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-conditions
"""

from collections.abc import Mapping, Sequence
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.status.restart_policy import is_sidecar, may_restart_all

# Present only while a resize of the pod's resources is pending or in progress.
RESIZES = ("PodResizePending", "PodResizeInProgress")
RESTARTING = "AllContainersRestarting"
OWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
Finding = tuple[bool, str, str]
FINE: Finding = (True, "", "")


def is_ready(item: Mapping[str, Any]) -> bool:
    """Check the Ready condition of a node or pod."""
    conditions = item.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def pod_conditions(
    pod: Object,
    *,
    phase: str,
    statuses: Sequence[Object],
    init_statuses: Sequence[Object],
    sandbox: bool,
    now: str,
    evicted: str = "",
    resizes: Sequence[Object] = (),
    restarting: bool = False,
) -> list[dict[str, Any]]:
    """Compute the whole list of conditions.

    Args:
        sandbox: The pod's network exists.
        now: The API's form of the time, for conditions that change.
        evicted: Why the node has terminated the pod, if it has.
        restarting: All containers are being terminated, to start again.
        resizes: Type, reason, message and observedGeneration of those of ``RESIZES`` that hold.
    """
    before = (pod.get("status") or {}).get("conditions") or []
    foreign = [
        dict(condition) for condition in before if condition["type"] not in (*OWN, *RESIZES, RESTARTING)
    ]
    containers_ready = _containers_ready(phase, statuses, init_statuses, pod)
    findings = {
        "PodReadyToStartContainers": _has_sandbox(phase, sandbox=sandbox),
        "Initialized": _initialised(pod, phase, statuses, init_statuses),
        "Ready": _ready(pod, foreign, containers_ready),
        "ContainersReady": containers_ready,
        "PodScheduled": FINE,
    }
    known = {condition["type"]: condition for condition in before}
    generation = pod["metadata"].get("generation")
    conditions = [_condition(kind, findings[kind], known.get(kind), generation, now) for kind in OWN]
    if evicted and "DisruptionTarget" not in known:
        finding = (True, "TerminationByKubelet", evicted)
        conditions.append(_condition("DisruptionTarget", finding, None, generation, now))
    if may_restart_all(pod):
        finding = (True, "RestartAllContainersStarted", "container exited with restart policy rule")
        finding = finding if restarting else (False, "", "")
        conditions.append(_condition(RESTARTING, finding, known.get(RESTARTING), generation, now))
    for resize in resizes:
        finding, last = (True, resize.get("reason", ""), resize.get("message", "")), known.get(resize["type"])
        unchanged = last if last and last.get("reason", "") == finding[1] else None
        conditions.append(
            _condition(resize["type"], finding, unchanged, resize.get("observedGeneration"), now)
        )
    return foreign + conditions


def _condition(
    kind: str, finding: Finding, before: Object | None, generation: int | None, now: str
) -> dict[str, Any]:
    holds, reason, message = finding
    status = "True" if holds else "False"
    unchanged = before if before is not None and before["status"] == status else None
    condition = {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": (unchanged.get("lastTransitionTime") if unchanged else None) or now,
    }
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    if generation:
        condition["observedGeneration"] = generation
    return condition


def _initialised(
    pod: Object, phase: str, statuses: Sequence[Object], init_statuses: Sequence[Object]
) -> Finding:
    if phase == "Succeeded":
        return True, "PodCompleted", ""
    if any("waiting" not in status["state"] for status in statuses):
        return FINE
    by_name = {status["name"]: status for status in init_statuses}
    incomplete = [
        container["name"]
        for container in pod["spec"].get("initContainers") or []
        if not by_name[container["name"]]["started" if is_sidecar(container) else "ready"]
    ]
    if incomplete and not (may_restart_all(pod) and was_initialised(pod)):
        return False, "ContainersNotInitialized", f"containers with incomplete status: {_names(incomplete)}"
    return FINE


def was_initialised(pod: Object) -> bool:
    """Check whether the pod has reported that its init containers have completed."""
    reported = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Initialized" and condition["status"] == "True" for condition in reported)


def _has_sandbox(phase: str, *, sandbox: bool) -> Finding:
    if phase in ("Succeeded", "Failed"):
        return False, "PodSandboxNotReady", "pod sandbox is not ready"
    return FINE if sandbox else (False, "PodSandboxNotReady", "no pod sandbox exists")


def _containers_ready(
    phase: str, statuses: Sequence[Object], init_statuses: Sequence[Object], pod: Object
) -> Finding:
    if phase in ("Succeeded", "Failed"):
        return False, "PodCompleted" if phase == "Succeeded" else "PodFailed", ""
    sidecars = {c["name"] for c in pod["spec"].get("initContainers") or [] if is_sidecar(c)}
    beside = [status for status in init_statuses if status["name"] in sidecars]
    unready = [status["name"] for status in [*beside, *statuses] if not status["ready"]]
    if unready:
        return False, "ContainersNotReady", f"containers with unready status: {_names(unready)}"
    return FINE


def _ready(pod: Object, foreign: Sequence[Object], containers_ready: Finding) -> Finding:
    if not containers_ready[0]:
        return containers_ready
    known = {condition["type"]: condition["status"] for condition in foreign}
    problems = []
    for gate in pod["spec"].get("readinessGates") or []:
        kind = gate["conditionType"]
        if kind not in known:
            problems.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif known[kind] != "True":
            problems.append(f'the status of pod readiness gate "{kind}" is not "True", but {known[kind]}')
    return (False, "ReadinessGatesNotReady", ", ".join(problems)) if problems else FINE


def _names(names: Sequence[str]) -> str:
    return "[" + " ".join(names) + "]"
