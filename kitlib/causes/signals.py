"""Signals: current conditions, containers' states and Events of the objects of a run.

An Event is kept for an hour, even if its object has changed since. This module selects those that explain the
present state; their meanings are in ``rules/signals.toml``. Pure.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kitlib.causes.facts import Facts
from kitlib.display.tables import parse_time
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object

# Normal Events that explain why something waits, or has ended.
EXPLAINING = (
    *("FailedBinding", "ExternalProvisioning", "Preempted", "TaintManagerEviction", "Killing"),
    "DeadlineExceeded",
)
SCHEDULING = ("FailedScheduling", "NotTriggerScaleUp")  # the pod's condition says the same, and is up to date
PROBES = ("Unhealthy", "ProbeWarning", "Killing")
# A controller's cache was behind: it tries again at once, and reports no success.
RETRIED = re.compile(r"already exists|the object has been modified|stale", re.I)
STOPPING = "Stopping container"  # of any pod that ends; for a deleted pod it may be the only Event
OWN_PODS = r"(-(master|worker|node|store|ps|launcher))?(-\d+)*(-[a-z0-9]{5})?"  # after the run's name
LONGEST_MATCHED = 4096  # characters of a message that are matched: pods and other users of the API write it


@dataclass(frozen=True)
class Signal:
    """A condition, a state or an Event of one object.

    Attributes:
        kind: The kind of the object: ``Pod``, ``Job``, ``PersistentVolumeClaim``.
        name: The name of the object.
        reason: In CamelCase, as the API has it.
        message: The message of the reason.
        part: The container, if the signal is about one.
        at: The time, RFC 3339.
        pod: The pod, if the object is a pod that exists.
        warning: Whether it is a state, or an Event of the type Warning.
    """

    kind: str
    name: str
    reason: str
    message: str
    part: str = ""
    at: str = ""
    pod: Object | None = None
    warning: bool = True

    @property
    def who(self) -> str:
        """The object's name for display: ``rank 1 (pod digits-1-x7x2p)``."""
        if self.kind != "Pod":
            return f"{self.kind} {self.name}"
        return pod_name(self.pod) if self.pod else f"pod {self.name}"

    @property
    def evidence(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}: {self.message}"


def pod_name(pod: Object) -> str:
    return f"{pods.display_name(pods.replica_id(pod))} (pod {pod['metadata']['name']})"


def signals(facts: Facts) -> list[Signal]:
    """List the current signals of a run's objects, the oldest first."""
    reported = [signal for pod in facts.pods for signal in of_pod(pod)]
    reported += [signal for event in facts.events if (signal := _of_event(event, facts)) is not None]
    return sorted(reported, key=lambda signal: signal.at)


def of_pod(pod: Object) -> Iterator[Signal]:
    """Yield the signals of a pod's own status."""
    status = pod.get("status") or {}

    def signal(reason: str, message: str, part: str = "", at: str = "") -> Signal:
        return Signal("Pod", pod["metadata"].get("name", ""), reason, message, part, at, pod)

    for condition in status.get("conditions") or []:
        reason, message = condition.get("reason") or "", condition.get("message") or ""
        disrupted = condition["type"] == "DisruptionTarget" and condition["status"] == "True"
        if disrupted or reason == "ReadinessGatesNotReady":
            yield signal(reason, message, at=condition.get("lastTransitionTime") or "")
    if status.get("reason") or status.get("message"):
        yield signal(status.get("reason") or "", status.get("message") or "")
    for field, first in (("initContainerStatuses", "Init"), ("containerStatuses", "")):
        for container in status.get(field) or []:
            yield from (
                signal(first + reason if reason in ("Failed", "CrashLoopBackOff") else reason, *rest)
                for reason, *rest in _states(container, init=bool(first))
            )


def _states(container: Object, *, init: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield why a container waits or has ended: reason, message, its name and the time."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    before, name = last.get("terminated") or {}, container.get("name", "")
    if waiting.get("reason") == "CrashLoopBackOff":
        ending = _ending(before, waiting.get("message", ""))
        yield "CrashLoopBackOff", ending, name, before.get("finishedAt") or ""
    elif waiting.get("message"):
        yield waiting.get("reason") or "", waiting["message"], name, ""
    if ended.get("exitCode"):
        reason = ended.get("reason") or "Error"
        if init or reason not in ("Error", "OOMKilled"):  # how a rank ends is in ``ranks``
            message = _ending(ended) if init else ended.get("message") or ""
            yield "Failed" if init else reason, message, name, ended.get("finishedAt") or ""


def _ending(ended: Object, unknown: str = "") -> str:
    if not ended:
        return unknown
    message = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
    return f"{message}: {ended['message'].strip()}" if ended.get("message") else message


def _of_event(event: Object, facts: Facts) -> Signal | None:
    """Take an Event as a signal, if it explains the present state of one of the run's objects."""
    reason, about = event.get("reason") or "", event.get("involvedObject") or {}
    kind, name = about.get("kind", ""), about.get("name", "")
    part = "".join(re.findall(r"\{([^{}]{1,253})\}", about.get("fieldPath") or ""))
    if reason.startswith("FailedTo") and "Endpoint" in reason and RETRIED.search(event.get("message") or ""):
        return None
    pod = next((pod for pod in facts.pods if kind == "Pod" and pod["metadata"].get("name") == name), None)
    warning = event.get("type") == "Warning"
    if not warning and reason not in EXPLAINING:
        return None
    if pod is not None:
        if not _holds(pod, reason, part) or (event.get("message") or "").startswith(STOPPING):
            return None
    elif not _of_run(event, kind, name, facts):
        return None
    message = re.sub(r"^(Error creating|Error): ", "", (event.get("message") or "")[:LONGEST_MATCHED].strip())
    if message.startswith("Failed to pull image"):
        reason = "ErrImagePull"
    return Signal(kind, name, reason, message, part, event_time(event), pod, warning)


def _of_run(event: Object, kind: str, name: str, facts: Facts) -> bool:
    """Check whether an Event about another object than an existing pod explains the run's state."""
    if kind == "PersistentVolumeClaim":
        item = facts.find(kind, name)
        if item and (pods.deleted(item) or (item.get("status") or {}).get("phase") == "Bound"):
            return False
        return any(name in pods.claims_of(pod) for pod in facts.pods)
    belongs_to_run = re.fullmatch(re.escape(facts.run) + OWN_PODS, name)
    if _of_earlier(event, facts):
        return False
    if kind == "Pod":  # the pods of a failed run may be gone
        failed = belongs_to_run and facts.main and job_kinds.failure(facts.main, facts.pods) is not None
        return bool(failed) and not (event.get("reason") == "FailedMount" and _started_later(event, facts))
    if not belongs_to_run and not any(item["metadata"]["name"] == name for item in facts.creators):
        return False
    if not event.get("reason", "").startswith("FailedCreate"):
        return True
    return _lacks_pods(facts, event_time(event)) and not _superseded(event, facts)


def _superseded(event: Object, facts: Facts) -> bool:
    """Check whether the controller has tried again since an Event, and reports that attempt."""

    def source(event: Object) -> tuple[object, ...]:
        about = event.get("involvedObject") or {}
        return event.get("reason"), about.get("kind"), about.get("name"), about.get("uid")

    newest = next(other for other in reversed(facts.events) if source(other) == source(event))
    return newest is not event


def _started_later(event: Object, facts: Facts) -> bool:
    """Check whether a container of the pod that an Event is about has started since."""
    name, before = (event.get("involvedObject") or {}).get("name"), event_time(event)
    return any(
        later.get("reason") == "Started"
        and (later.get("involvedObject") or {}).get("name") == name
        and event_time(later) >= before
        for later in facts.events
    )


def _of_earlier(event: Object, facts: Facts) -> bool:
    """Check whether an Event is about objects of an earlier run of this name."""
    main = (facts.main or {}).get("metadata") or {}
    about = event.get("involvedObject") or {}
    if about.get("name") == main.get("name") and about.get("kind") == (facts.main or {}).get("kind"):
        return bool(about.get("uid") and main.get("uid")) and about["uid"] != main["uid"]
    began, when = parse_time(main.get("creationTimestamp")), parse_time(event_time(event) or None)
    return began is not None and when is not None and when < began


def _lacks_pods(facts: Facts, since: str) -> bool:
    """Check whether pods are missing that could not be created at a time."""
    live = [pod for pod in facts.pods if not pods.deleted(pod)]
    newest = max((pod["metadata"].get("creationTimestamp") or "" for pod in live), default="")
    return len(live) < facts.desired and since >= newest


def _holds(pod: Object, reason: str, part: str) -> bool:
    """Check whether an Event about a pod explains its present state."""
    if reason in SCHEDULING or pods.phase(pod) == "Succeeded":
        return False
    if reason in PROBES:
        return not pods.has_condition(pod, "ContainersReady")
    return pods.phase(pod) != "Running" or not _started(pod, part)


def _started(pod: Object, part: str) -> bool:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [container.get("state") or {} for container in containers if part in ("", container.get("name"))]
    return bool(states) and all("running" in state or "terminated" in state for state in states)


def ended_by_node(pod: Object | None) -> bool:
    """Check whether a pod was ended by its node, or could not be started: its program has not failed."""
    status = (pod or {}).get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    reasons = {(state.get("terminated") or {}).get("reason") for state in states}
    return bool(status.get("reason")) or bool(reasons & {"StartError", "ContainerCannotRun"})
