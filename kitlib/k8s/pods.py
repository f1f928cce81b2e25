"""Reading a pod: its rank, what it is doing in kubectl's words, and why it does not run. Pure."""

import re
from collections.abc import Iterable

from kitlib.display import tracebacks
from kitlib.display.tables import Table, age
from kitlib.k8s import names
from kitlib.k8s.manifests import Object

INDEX = "batch.kubernetes.io/job-completion-index"
PART, PART_INDEX = "elasticdl-replica-type", "elasticdl-replica-index"
LONGEST = 500  # characters of a reason
REPLICA = "training.kubeflow.org/replica-index"  # among the masters, or among the workers


def node_rank(pod: Object) -> int | None:
    """Return the pod's number among those of its run, as whoever made the pod has numbered it.

    A Job writes it into an annotation, and so into the pods of a TrainJob too. The Training Operator numbers
    masters and workers apart, and writes what it counts together into the environment. Workers that are plain
    pods have the kit's label.
    """
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    index = labels.get(names.WORKER, labels.get(INDEX, (meta.get("annotations") or {}).get(INDEX)))
    if index is None and REPLICA in labels:
        given = (each for container in pod["spec"]["containers"] for each in container.get("env") or [])
        index = next((each.get("value") for each in given if each["name"] == "RANK"), labels[REPLICA])
    return int(index) if index is not None else None


def replica_id(pod: Object) -> int | str:
    """Return by what a pod is known in its run: its rank; among parameter servers role and number.

    Example:
        >>> labels = {"elasticdl-replica-type": "ps", "elasticdl-replica-index": "1"}
        >>> replica_id({"metadata": {"labels": labels}})
        'ps-1'
    """
    labels = pod["metadata"].get("labels") or {}
    role = labels.get(PART)
    if role is None:
        return node_rank(pod) or 0
    return role if role == "master" else f"{role}-{labels.get(PART_INDEX)}"


def is_replica_id(replica: object) -> bool:
    """Return whether a master, server or worker can have this name: there may be one later."""
    return isinstance(replica, str) and re.fullmatch(r"master|(worker|ps)-\d+", replica) is not None


def display_name(replica: int | str) -> str:
    """Return a replica as people call it: ``rank 3``, ``worker-3``."""
    return f"rank {replica}" if isinstance(replica, int) else replica


def phase(pod: Object) -> str:
    """Return Pending, Running, Succeeded, Failed or Unknown."""
    return (pod.get("status") or {}).get("phase", "Pending")


def finished(pod: Object) -> bool:
    """Return whether its containers have run for the last time."""
    return phase(pod) in ("Succeeded", "Failed")


def failed(pods: Iterable[Object]) -> list[Object]:
    """Return those that failed, the first to do so first; of parameter servers, a failed master before all.

    Workers and servers may fail, and others take their places: what ends such a run is the master's end.
    Those that failed because they were deleted come last, since times are whole seconds.
    """
    those = (each for each in pods if phase(each) == "Failed")
    return sorted(those, key=lambda pod: (replica_id(pod) != "master", deleted(pod), finished_at(pod)))


def deleted(pod: Object) -> bool:
    """Return whether somebody has asked for its deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def containers(pod: Object) -> list[Object]:
    """Return the statuses of its containers, initial ones first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def started(pod: Object) -> bool:
    """Return whether its main container runs, or has run: whether there may be a log."""
    states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or []]
    return any("running" in state or "terminated" in state for state in states)


def condition(pod: Object, kind: str) -> Object:
    """Return a condition of the pod; an empty one if it has none of this kind."""
    every = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in every if each["type"] == kind), {})


def node_unreachable(pod: Object) -> str:
    """Return that the pod's node does not answer, or an empty text.

    The node controller then calls its pods not ready, and leaves alone the conditions that say otherwise.
    """
    if (
        finished(pod)
        or pod["spec"].get("readinessGates")
        or condition(pod, "ContainersReady").get("status") != "True"
        or condition(pod, "Ready").get("status") != "False"
    ):
        return ""
    evicted = condition(pod, "DisruptionTarget").get("status") == "True"
    words = f"its node {pod['spec'].get('nodeName')} does not answer"
    return f"{words}, and it was evicted" if evicted else words


def status_word(pod: Object) -> str:
    """Return one word on the pod, as in the STATUS column of ``kubectl get pods``."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for each in containers(pod):
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in (None, "PodInitializing"):
            return waiting["reason"]
        if ended and ended.get("exitCode") != 0:
            return ended.get("reason") or "Error"
    if phase(pod) == "Succeeded":
        return "Completed"
    return (pod.get("status") or {}).get("reason") or phase(pod)


def why(pod: Object) -> str:
    """Return why a pod does not run, in the words of whoever holds it up; empty if nobody does."""
    if not finished(pod):
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return scheduled.get("message") or scheduled.get("reason") or ""
    for each in containers(pod):
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting and waiting.get("message"):
            return f"{waiting.get('reason', 'Waiting')}: {waiting['message']}"
        if ended and ended.get("exitCode") != 0:
            return _ended(ended)
    return (pod.get("status") or {}).get("message") or node_unreachable(pod)


def finished_at(pod: Object) -> str:
    """Return when its first container failed, or the last one ended: RFC 3339, or an empty text."""
    ended = [
        state["terminated"] for each in containers(pod) if "terminated" in (state := each.get("state") or {})
    ]
    bad = [each.get("finishedAt") or "" for each in ended if each.get("exitCode") != 0]
    return min(bad) if bad else max((each.get("finishedAt") or "" for each in ended), default="")


def last_message(pod: Object) -> list[tracebacks.Line]:
    """Return what its containers left as their last words: the end of a log that may be gone."""
    states = [each.get("state") or {} for each in containers(pod)]
    ended = [state["terminated"] for state in states if "terminated" in state]
    return [
        tracebacks.Line(each.get("finishedAt") or "", text)
        for each in ended
        if each.get("exitCode") != 0
        for text in tracebacks.with_head((each.get("message") or "").splitlines())
    ]


def table(pods: Iterable[Object]) -> Table:
    """Return pods as a table, those of a run by their rank."""
    ordered = sorted(
        pods, key=lambda pod: (-1 if node_rank(pod) is None else node_rank(pod), pod["metadata"]["name"])
    )
    ranked = any(node_rank(pod) is not None for pod in ordered)
    columns = ["pod", *(["rank"] if ranked else []), "status", "restarts", "node", "ip", "age", "why"]
    rows = [
        [
            pod["metadata"]["name"],
            *([node_rank(pod)] if ranked else []),
            status_word(pod),
            _restarts(pod),
            pod["spec"].get("nodeName"),
            (pod.get("status") or {}).get("podIP"),
            age(pod["metadata"].get("creationTimestamp")),
            why(pod),
        ]
        for pod in ordered
    ]
    if not any(row[-1] for row in rows):  # nobody waits
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(columns, rows, empty="no pods")


def _restarts(pod: Object) -> int:
    return sum(
        each.get("restartCount", 0) for each in (pod.get("status") or {}).get("containerStatuses") or []
    )


def _ended(ended: Object) -> str:
    reason, code = ended.get("reason") or "Error", ended.get("exitCode")
    words = _last_words((ended.get("message") or "").strip())
    return f"{reason}, exit code {code}" + (f": {words}" if words else "")


def _last_words(message: str) -> str:
    """Return what a termination message comes to: it may be the end of the container's log."""
    if "\n" not in message:
        return message[:LONGEST]
    found = tracebacks.find(tracebacks.Line("", text) for text in tracebacks.with_head(message.splitlines()))
    return found[0].error[:LONGEST] if found else ""
