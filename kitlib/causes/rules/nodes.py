"""Causes on nodes: lost, not ready, short of memory, disk, process ids or time.

A node's conditions and Events say so; where this user may not read nodes, the pods' own conditions do.
"""

from collections.abc import Iterator

from kitlib.causes.cause import CERTAIN, LIKELY, POSSIBLE, Cause
from kitlib.causes.facts import Facts
from kitlib.display.tables import parse_time
from kitlib.k8s import pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object

SHORT_OF = {"MemoryPressure": "memory", "DiskPressure": "disk", "PIDPressure": "process ids"}
FIXES = {
    "MemoryPressure": "end other programs and runs, or request `memory=`, so that pods go to nodes with it",
    "DiskPressure": "free disk space: old volumes, images, logs; trainyard doctor shows how much",
    "PIDPressure": "fewer processes: data loader workers, threads; trainyard doctor shows the limit",
}
OVERLOADED = "the machine is overloaded? trainyard doctor; fewer nodes and runs at a time"
RECENT_SECONDS = 300
BY_PURPOSE = ("Stopped", "Isolated", "Rebooted", "Starting")


def unhealthy_nodes(facts: Facts) -> Iterator[Cause]:
    """Find unhealthy nodes: those of the run's pods; of a run that lacks pods, of all nodes."""
    if facts.phase in ("Succeeded", "Deleted"):
        return
    places = {pod["spec"].get("nodeName") for pod in facts.pods}
    waiting = facts.phase == "Pending" or None in places
    for node in facts.of("Node"):
        name = node["metadata"]["name"]
        if name in places or waiting:
            yield from _conditions(facts, node, has_pods=name in places)
            yield from _events(facts, node)
    if not facts.of("Node"):
        yield from _unreachable(facts)


def _conditions(facts: Facts, node: Object, *, has_pods: bool) -> Iterator[Cause]:
    """Find the conditions that a healthy node does not have; an extension's are problems when true."""
    name = node["metadata"]["name"]
    for condition in (node.get("status") or {}).get("conditions") or []:
        kind, status, message = condition["type"], condition["status"], condition.get("message") or ""
        if kind == "Ready" and status != "True":
            what = "does not answer" if status == "Unknown" else f"is not ready: {message}"
            fix, kind = f"kubectl describe node {name}; {OVERLOADED}", "NodeNotReady"
        elif kind != "Ready" and status == "True":
            short = SHORT_OF.get(kind)
            what = (
                f"is short of {short}: it starts no pods, and evicts some"
                if short
                else f"reports {kind}: {message}"
            )
            fix = FIXES.get(kind, f"kubectl describe node {name}; {OVERLOADED}")
        else:
            continue
        replicas = [pods.replica_id(pod) for pod in facts.pods if pod["spec"].get("nodeName") == name]
        ranks = ", ".join(map(pods.display_name, replicas))
        reason = condition.get("reason") or ""
        yield Cause(
            kind=kind,
            who=f"node {name}" + (f" ({ranks})" if ranks else ""),
            what=what,
            fix=fix,
            evidence=(f"Node {name}: {condition['type']} is {status}: {reason}: {message}",),
            certainty=POSSIBLE if not has_pods else CERTAIN if kind == "NodeNotReady" else LIKELY,
            time=condition.get("lastTransitionTime") or "",
            rank=replicas[0] if len(replicas) == 1 else None,
        )


def _events(facts: Facts, node: Object) -> Iterator[Cause]:
    """Find recent Warnings about a node, the last of each reason."""
    name = node["metadata"]["name"]
    last: dict[str, Object] = {}
    began = parse_time(((facts.main or {}).get("metadata") or {}).get("creationTimestamp"))
    for event in facts.events:
        about, when = event.get("involvedObject") or {}, parse_time(event_time(event) or None)
        if about.get("kind") != "Node" or about.get("name") != name or event.get("type") != "Warning":
            continue
        since = facts.seconds_since(event_time(event))
        if when and began and when >= began and (facts.phase == "Failed" or since < RECENT_SECONDS):
            last[event.get("reason") or ""] = event
    for reason, event in last.items():
        if reason not in BY_PURPOSE:
            yield Cause(
                kind=reason,
                who=f"node {name}",
                what=f"reports {reason}: {event.get('message', '')}",
                fix=f"kubectl describe node {name}; {OVERLOADED}",
                certainty=POSSIBLE,
                time=event_time(event),
            )


def _unreachable(facts: Facts) -> Iterator[Cause]:
    """Find pods whose node does not answer, by their own conditions."""
    for pod in facts.pods:
        if message := pods.node_unreachable(pod):
            name = pod["spec"].get("nodeName")
            yield Cause(
                kind="NodeNotReady",
                who=f"node {name} ({pods.display_name(pods.replica_id(pod))})",
                what="does not answer",
                fix=f"ask the administrator of node {name}; elastic jobs replace the worker",
                evidence=(f"Pod {pod['metadata']['name']}: {message}",),
                certainty=CERTAIN,
                rank=pods.replica_id(pod),
            )


RULES = (unhealthy_nodes,)
