"""Reading a pod: its rank, its status in kubectl's words, and why it does not run. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from kitlib.display import tracebacks
from kitlib.display.tables import Table, age
from kitlib.k8s import names
from kitlib.k8s.manifests import Object

NONE: Mapping[str, str] = MappingProxyType({})
INDEX = "batch.kubernetes.io/job-completion-index"
REPLICA = "training.kubeflow.org/replica-index"  # among the masters, or among the workers
RANK = re.compile("[0-9]{1,9}")  # whoever creates a pod can write anything into its labels
LONGEST = 500  # characters of a reason


def node_rank(pod: Object) -> int | None:
    """Read the pod's number in its run, as its controller or the kit has set it.

    A Job writes it into an annotation, also for a TrainJob. The Training Operator numbers masters and workers
    apart, and puts the rank among both into the environment. Plain pods have the kit's label.
    """
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    index = labels.get(names.WORKER, labels.get(INDEX, (meta.get("annotations") or {}).get(INDEX)))
    if index is None and REPLICA in labels:
        env = (variable for container in pod["spec"]["containers"] for variable in container.get("env") or [])
        index = next(
            (variable.get("value") for variable in env if variable["name"] == "RANK"), labels[REPLICA]
        )
    return int(index) if index is not None and RANK.fullmatch(index) else None


def replica_id(pod: Object) -> int | str:
    """Identify a pod in its run: by its rank; among parameter servers by role and number.

    Example:
        >>> replica_id({"metadata": {"labels": {"trainyard/replica": "ps-1"}}})
        'ps-1'
    """
    return _replica_or_rank(pod) or 0


def _replica_or_rank(pod: Object) -> int | str | None:
    return (pod["metadata"].get("labels") or {}).get(names.REPLICA) or node_rank(pod)


def is_replica_id(name: object) -> bool:
    """Check whether a master, server or worker may have this name."""
    return isinstance(name, str) and re.fullmatch(r"master|(worker|ps)-\d+", name) is not None


def display_name(replica: int | str) -> str:
    """Format a replica's identifier for people: ``rank 3``, ``worker-3``."""
    return f"rank {replica}" if isinstance(replica, int) else replica


def phase(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def finished(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def deleted(pod: Object) -> bool:
    """Check whether its deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def failed(pods: Iterable[Object]) -> list[Object]:
    """Select the failed ones, the first to fail first; of parameter servers, a failed master before all.

    Workers and servers are replaced when they fail: such a run ends with its master. Those that failed
    because they were deleted come last, since times are whole seconds.
    """
    candidates = (pod for pod in pods if phase(pod) == "Failed")
    return sorted(candidates, key=lambda pod: (replica_id(pod) != "master", deleted(pod), finished_at(pod)))


def started(pod: Object) -> bool:
    """Check whether its main container runs, or has run, so that there may be a log."""
    states = [
        status.get("state") or {} for status in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    return any("running" in state or "terminated" in state for state in states)


def started_at(pod: Object) -> str:
    """Find when its first running container started: RFC 3339; empty if none runs."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    times = (((status.get("state") or {}).get("running") or {}).get("startedAt") for status in statuses)
    return min(filter(None, times), default="")


def has_begun(pod: Object) -> bool:
    """Check whether one of its containers may have started; none has if an initial one failed."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return not statuses or any("waiting" not in (status.get("state") or {}) for status in statuses)


def condition(pod: Object, kind: str) -> Object:
    """Get a condition of the pod; an empty one if it has none of this kind."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), {})


def conditions(item: Object) -> dict[str, Object]:
    """Index the conditions of a pod, or of another object, that are true by their type."""
    listed = (item.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in listed if condition["status"] == "True"}


def has_condition(item: Object, kind: str) -> bool:
    """Whether a condition of a pod, or of another object, is true."""
    return kind in conditions(item)


def node_unreachable(pod: Object) -> str:
    """Describe that the pod's node does not answer; empty if it answers.

    The node controller then sets the pod's condition Ready to false, and leaves ContainersReady alone.
    """
    if (
        finished(pod)
        or pod["spec"].get("readinessGates")
        or not has_condition(pod, "ContainersReady")
        or condition(pod, "Ready").get("status") != "False"
    ):
        return ""
    message = f"its node {pod['spec'].get('nodeName')} does not answer"
    return f"{message}, and it was evicted" if has_condition(pod, "DisruptionTarget") else message


def _states(pod: Object) -> list[tuple[Object, Object]]:
    """List its containers' states, waiting and terminated; initial containers first."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [status.get("state") or {} for status in statuses]
    return [(state.get("waiting") or {}, state.get("terminated") or {}) for state in states]


def running_init_container(pod: Object) -> Object:
    """Find the status of the init container that runs, which the others wait for; empty if none does."""
    specs = pod["spec"].get("initContainers") or []
    sidecars = {item["name"] for item in specs if item.get("restartPolicy")}
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    running = (item for item in statuses if (item.get("state") or {}).get("running"))
    return next((item for item in running if item["name"] not in sidecars), {})


def main_container(pod: Object) -> str:
    """Name the container of a pod's rank: the one that kubectl reads by default, else the first."""
    notes = pod["metadata"].get("annotations") or {}
    first: list[Object] = (pod.get("spec") or {}).get("containers") or []
    name = notes.get("kubectl.kubernetes.io/default-container") or (first[0].get("name") if first else "")
    return name or ""


def status_word(pod: Object) -> str:
    """Summarise the pod in one word, as the STATUS column of ``kubectl get pods``."""
    if deleted(pod):
        return "Terminating"
    for waiting, ended in _states(pod):
        if waiting.get("reason") not in (None, "PodInitializing"):
            return waiting["reason"]
        if ended and ended.get("exitCode") != 0:
            return ended.get("reason") or "Error"
    if phase(pod) == "Succeeded":
        return "Completed"
    return (pod.get("status") or {}).get("reason") or phase(pod)


def why(pod: Object) -> str:
    """Get the message of the scheduler, kubelet or container why a pod does not run; empty if it runs."""
    if not finished(pod):
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return scheduled.get("message") or scheduled.get("reason") or ""
    for waiting, ended in _states(pod):
        if waiting.get("message"):
            return f"{waiting.get('reason', 'Waiting')}: {waiting['message']}"
        if ended and ended.get("exitCode") != 0:
            words = _last_words((ended.get("message") or "").strip())
            reason = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
            return reason + (f": {words}" if words else "")
    return (pod.get("status") or {}).get("message") or node_unreachable(pod)


def _last_words(message: str) -> str:
    """Shorten a termination message, which may be the end of the container's log."""
    if "\n" not in message:
        return message[:LONGEST]
    parsed = tracebacks.find(tracebacks.Line("", text) for text in tracebacks.with_head(message.splitlines()))
    return parsed[0].error[:LONGEST] if parsed else ""


def finished_at(pod: Object) -> str:
    """Find when its first container failed, or the last one ended: RFC 3339, or an empty text."""
    ended = [ended for _, ended in _states(pod) if ended]
    bad = [state.get("finishedAt") or "" for state in ended if state.get("exitCode") != 0]
    return min(bad) if bad else max((state.get("finishedAt") or "" for state in ended), default="")


def last_message(pod: Object) -> list[tracebacks.Line]:
    """Read its containers' termination messages: the end of a log that may have been deleted."""
    return [
        tracebacks.Line(state.get("finishedAt") or "", text)
        for _, state in _states(pod)
        if state and state.get("exitCode") != 0
        for text in tracebacks.with_head((state.get("message") or "").splitlines())
    ]


def table(pods: Iterable[Object], *, reasons: Mapping[str, str] = NONE) -> Table:
    """Make a table of pods, those of a run by their rank.

    Args:
        pods: The pods.
        reasons: By a pod's name why it waits, where the pod itself does not say so.
    """
    ordered = sorted(
        pods, key=lambda pod: (-1 if node_rank(pod) is None else node_rank(pod), pod["metadata"]["name"])
    )
    ranked = any(_replica_or_rank(pod) is not None for pod in ordered)
    columns = ["pod", *(["rank"] if ranked else []), "status", "restarts", "node", "ip", "age", "why"]
    rows = []
    for pod in ordered:
        status = pod.get("status") or {}
        rows.append(
            [
                pod["metadata"]["name"],
                *([_replica_or_rank(pod)] if ranked else []),
                status_word(pod),
                sum(status.get("restartCount", 0) for status in status.get("containerStatuses") or []),
                pod["spec"].get("nodeName"),
                status.get("podIP"),
                age(pod["metadata"].get("creationTimestamp")),
                why(pod) or reasons.get(pod["metadata"]["name"], ""),
            ]
        )
    if not any(row[-1] for row in rows):  # all run
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(columns, rows, empty="no pods")


def seconds_run(run_pods: Iterable[Object]) -> float | None:
    """Count the seconds from the first start of a container to the last end; None if none has ended."""
    statuses = (status for pod in run_pods for status in pod.get("status", {}).get("containerStatuses") or ())
    ended = [state for status in statuses if (state := status.get("state", {}).get("terminated"))]
    starts = [state["startedAt"] for state in ended if state.get("startedAt")]
    ends = [state["finishedAt"] for state in ended if state.get("finishedAt")]
    if not starts or not ends:
        return None
    return (datetime.fromisoformat(max(ends)) - datetime.fromisoformat(min(starts))).total_seconds()


def claims_of(pod: Object) -> Iterator[str]:
    """Yield the names of the PersistentVolumeClaims of a pod."""
    for volume in pod["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}"


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration matches a taint, as ``core/v1`` defines it."""
    return (
        toleration.get("key", taint["key"]) == taint["key"]
        and toleration.get("effect") in (None, "", taint["effect"])
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
    )
