"""What was done to a run, by people and by Kubernetes, as its Events tell: killed, scaled, evicted … Pure.

The kit writes an Event for each of its own calls, and Kubernetes for most of what it does by itself. What
training made of it is in `timeline`.
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
    ("", "SuccessfulRescale"): "scaled",  # an autoscaler's
}
STORE_LOST = "store lost"
NODES = ("node stopped", "node started", "node isolated", "node reconnected")
SAME_SECONDS = 5.0  # who deletes a pod says why, and then the node says that it ends it
_SIZES = re.compile(r"(\d+) ?(?:→|->|to) ?(\d+)")


@dataclass(frozen=True)
class Disruption:
    """Something that was done, or happened, to a run.

    Attributes:
        time: Seconds since 1970.
        what: One of the values of :data:`WHAT`, with the numbers of ``scaled``; or :data:`STORE_LOST`.
        worker: The pod, if it was done to one.
        node: The node, if it was done to one.
        why: In the words of the Event.
    """

    time: float
    what: str
    worker: str = ""
    node: str = ""
    why: str = ""


def disruptions(
    events: Iterable[Object], *, run: str, workers: Mapping[str, str], store: Collection[str] = ()
) -> list[Disruption]:
    """Return what Events say was done to a run, in the order of time.

    Args:
        events: Of the run's namespace, and of nodes.
        run: Its name, which its main object has as well.
        workers: The run's pods, and their nodes.
        store: The names of the pods that hold the rendezvous.

    Example:
        >>> disruptions(cluster_events, run="lab", workers={"lab-0": "node-1"})[0].what
        'killed'
    """
    found = [act for event in events if (act := _act(event, run, workers, store)) is not None]
    found.sort(key=lambda act: act.time)
    told = [act for act in found if act.what not in ("pod deleted", STORE_LOST)]
    return [each for each in found if each.what != "pod deleted" or not _explained(each, told)]


def _act(event: Object, run: str, workers: Mapping[str, str], store: Collection[str]) -> Disruption | None:
    about, reason = event["involvedObject"], event.get("reason", "")
    kind, name, why = about.get("kind", ""), about.get("name", ""), event.get("message") or ""
    what = WHAT.get((kind, reason)) or WHAT.get(("", reason))
    if what is None or "ancel" in why:  # an eviction that was called off
        return None
    if kind == "Pod" and name in store:
        what = STORE_LOST if what in ("killed", "paused", "pod deleted", "evicted", "preempted") else what
        return Disruption(time_of(event), what, why=why)
    if kind != "Node" and name != run and name not in workers:  # somebody else's
        return None
    if what == "scaled":
        sizes = _SIZES.search(why)
        what = f"scaled {sizes[1]} → {sizes[2]}" if sizes else what
    if kind == "Node":
        return Disruption(time_of(event), what, node=name, why=why)
    worker = name if kind == "Pod" and not what.startswith("scaled") else ""
    return Disruption(time_of(event), what, worker, workers.get(worker, ""), why)


def _explained(deletion: Disruption, told: Iterable[Disruption]) -> bool:
    """Return whether something else says why this pod was deleted."""
    return any(
        abs(each.time - deletion.time) <= SAME_SECONDS
        and (each.worker == deletion.worker or each.what.startswith("scaled"))
        for each in told
    )


def time_of(event: Object) -> float:
    """Return when an Event happened, as exactly as it says."""
    when = event.get("eventTime") or event.get("lastTimestamp") or event.get("firstTimestamp")
    return parse_time(when or event["metadata"]["creationTimestamp"]).timestamp()
