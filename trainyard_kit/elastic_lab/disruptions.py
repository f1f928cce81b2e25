"""Disruptions of a run, from Events: pods killed, preempted or evicted, nodes stopped, workers scaled. Pure.

The kit issues an Event for each of its calls, and Kubernetes for most of its own actions. The effects on
training are in `timeline`.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kitlib.display.tables import parse_time
from kitlib.k8s.manifests import Object

# By the object's kind and the Event's reason; an empty kind stands for any.
WHAT = {
    ("Pod", "Killed"): "killed",
    ("Pod", "Paused"): "paused",
    ("Pod", "Resumed"): "resumed",
    ("Node", "Stopped"): "node stopped",
    ("Node", "Started"): "node started",
    ("Node", "Isolated"): "node isolated",
    ("Node", "Reconnected"): "node reconnected",
    ("Pod", "Preempted"): "preempted",
    ("Pod", "Preempting"): "preempted",
    ("Pod", "Evicted"): "evicted",
    ("Pod", "TaintManagerEviction"): "evicted",
    ("Pod", "Killing"): "pod deleted",
    ("", "Scaled"): "scaled",
    ("", "SuccessfulRescale"): "scaled",  # by an autoscaler
}
STORE_LOST = "store lost"
SAME_SECONDS = 5.0  # between the kubelet's Event of a deletion and the one with its cause
_SIZES = re.compile(r"\b(\d{1,9}) ?(?:→|->|to) ?(\d{1,9})")


@dataclass(frozen=True)
class Disruption:
    """One disruption of a run.

    Attributes:
        time: Seconds since 1970.
        what: One of the values of :data:`WHAT`, with the numbers of ``scaled``; or :data:`STORE_LOST`.
        worker: The affected pod, if any.
        node: The affected node, if any.
        message: The Event's message.
    """

    time: float
    what: str
    worker: str = ""
    node: str = ""
    message: str = ""


def disruptions(
    events: Iterable[Object], *, run: str, workers: Mapping[str, str], store: Collection[str] = ()
) -> list[Disruption]:
    """Extract a run's disruptions from Events of its pods, their nodes and its store, by time."""
    ordered = list(filter(None, (_disruption(event, run, workers, store) for event in events)))
    ordered.sort(key=lambda disruption: disruption.time)
    causes = [disruption for disruption in ordered if disruption.what not in ("pod deleted", STORE_LOST)]
    return [
        disruption
        for disruption in ordered
        if disruption.what != "pod deleted" or not _has_cause(disruption, causes)
    ]


def _disruption(
    event: Object, run: str, workers: Mapping[str, str], store: Collection[str]
) -> Disruption | None:
    involved, reason = event["involvedObject"], event.get("reason", "")
    kind, name, message = involved.get("kind", ""), involved.get("name", ""), event.get("message") or ""
    what = WHAT.get((kind, reason)) or WHAT.get(("", reason))
    if what is None or "ancel" in message:  # a cancelled eviction
        return None
    when = event.get("eventTime") or event.get("lastTimestamp") or event.get("firstTimestamp")
    time = parse_time(str(when or event["metadata"]["creationTimestamp"])).timestamp()
    if kind == "Pod" and name in store:
        lost = what in ("killed", "paused", "pod deleted", "evicted", "preempted")
        return Disruption(time, STORE_LOST if lost else what, message=message)
    if kind == "Node":
        return Disruption(time, what, node=name, message=message)
    if name != run and name not in workers:  # of another run
        return None
    if what == "scaled":
        sizes = _SIZES.search(message)
        return Disruption(time, f"scaled {sizes[1]} → {sizes[2]}" if sizes else what, message=message)
    worker = name if kind == "Pod" else ""
    return Disruption(time, what, worker, workers.get(worker, ""), message)


def _has_cause(deletion: Disruption, causes: Iterable[Disruption]) -> bool:
    return any(
        abs(cause.time - deletion.time) <= SAME_SECONDS
        and (cause.worker == deletion.worker or cause.what.startswith("scaled"))
        for cause in causes
    )
