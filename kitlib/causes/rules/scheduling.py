"""Causes for which the scheduler finds no node: its message, parsed, with the state of the nodes and the pod.

What each part of the message means is in ``scheduling.toml``. Claims that do not exist, or have no volume,
are in ``reported``, and what keeps the scheduler from looking at a pod at all is in ``waiting``.
"""

import functools
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kitlib.causes.cause import CERTAIN, CONSEQUENCE, Cause
from kitlib.causes.facts import Facts
from kitlib.causes.free_resources import BYTES, holders_of_port, needed, shortage
from kitlib.causes.rules.reported import cause_of, patterns
from kitlib.causes.signals import LONGEST_MATCHED, Signal, pod_name
from kitlib.k8s import pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import format_bytes

PREEMPTION = re.compile(r"\.?\s{0,4}(no new claims to deallocate, )?preemption: .*", re.DOTALL)
# What a namespace shows of a node's problem: the status or an Event of a pod that ran there.
SEEN = re.compile(r"low on resource: ([\w-]+)|had condition: \[(\w+)\]|Node is (not ready)")
SEEN_SECONDS = 1800


@functools.cache
def _table() -> dict[str, Any]:
    """Read the table of the scheduler's messages."""
    with Path(__file__).with_name("scheduling.toml").open("rb") as file:
        return tomllib.load(file)


def unschedulable(facts: Facts) -> Iterator[Cause]:
    """Find why the scheduler has no node for pods; ranks with the same reason are one cause."""
    by_message: dict[str, list[Object]] = defaultdict(list)
    for pod in facts.pods if facts.phase != "Succeeded" else ():  # others have done its work
        scheduled = pods.condition(pod, "PodScheduled")
        if not pods.finished(pod) and scheduled.get("status") == "False":
            by_message[scheduled.get("message") or ""].append(pod)
    for message, waiting in by_message.items():
        if pods.condition(waiting[0], "PodScheduled").get("reason") != "SchedulingGated":
            yield from _cause(facts, message, waiting)


def _cause(facts: Facts, message: str, waiting: list[Object]) -> Iterator[Cause]:
    pod, spec = waiting[0], waiting[0]["spec"]
    condition = pods.condition(pod, "PodScheduled")
    subject = pod_name(pod) + (f", and {len(waiting) - 1} more," if waiting[1:] else "")
    at = condition.get("lastTransitionTime") or ""
    signal = Signal("Pod", pod["metadata"]["name"], "Unschedulable", message, at=at, pod=pod)
    for pattern in patterns():
        if "Claim" in pattern.kind and (match := pattern.match(signal)):
            evidence = (signal.evidence, *_finalizers(facts, match["claim"]))
            yield replace(cause_of(facts, (signal, pattern, match)), who=subject, evidence=evidence)
            return
    text = PREEMPTION.sub("", message[:LONGEST_MATCHED])
    reasons = []
    for count, part in _split(text):
        entry = next((entry for entry in _table()["part"] if re.search(entry["part"], part)), None)
        match = entry and re.search(entry["part"], part)
        if entry and match:
            values = _values(facts, spec, match)
            phrase = f"{count} {entry['what'].format_map(values)}".strip()
            reasons.append((entry["kind"], phrase, values["less"] or entry["fix"].format_map(values)))
        elif part:
            reasons.append(("Unschedulable", f"{count} {part}".strip(), "kubectl describe pod"))
    order = [entry["kind"] for entry in _table()["part"]]
    best = min(
        reasons, key=lambda entry: order.index(entry[0]) if entry[0] in order else len(order), default=None
    )
    kind, fix = (
        (best[0], best[2]) if best else ("Unschedulable", f"kubectl describe pod {pod['metadata']['name']}")
    )
    total = re.match(r"0/(\d+) nodes", text)
    nodes = f"no node of {total[1]} can take it: " if total and kind != "ClaimUnbound" else ""
    yield Cause(
        kind=kind,
        who=subject,
        what="cannot be scheduled: " + nodes + ("; ".join(phrase for _, phrase, _ in reasons) or message),
        fix=fix,
        evidence=(f"Pod {pod['metadata']['name']}: {condition.get('reason')}: {message}",),
        certainty=CONSEQUENCE if kind == "ClaimUnbound" else CERTAIN,
        time=at,
        rank=pods.replica_id(pod),
    )


def _finalizers(facts: Facts, claim: str) -> list[str]:
    """Name the finalizers of a claim that is being deleted."""
    item = facts.find("PersistentVolumeClaim", claim) or {"metadata": {}}
    finalizers = ", ".join(item["metadata"].get("finalizers") or [])
    return [f"finalizers of the claim: {finalizers}"] if finalizers else []


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Split the scheduler's message into the number of nodes and the reason of each part."""
    body = re.sub(r"^\d+/\d+ nodes are available:?\s*", "", text).rstrip(". ")
    for part in re.split(r", (?=\d+ )|; ", body):
        number = re.match(r"(\d+) (.*)", part, re.DOTALL)
        yield (number[1], number[2]) if number else ("", part)


def _values(facts: Facts, spec: Object, match: re.Match[str]) -> defaultdict[str, str]:
    """Compute the values for the placeholders of a part's texts."""
    values = defaultdict(str, {name: value or "" for name, value in match.groupdict().items()})
    nodes = facts.of("Node")
    cordoned = [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]
    taints = [taint for node in nodes for taint in _untolerated(node, spec)]
    selector = [f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items()]
    terms = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in terms.get("nodeSelectorTerms") or []:
        selector += [
            f"{item['key']} {item['operator']} {item.get('values') or ''}".strip()
            for item in (term.get("matchExpressions") or []) + (term.get("matchFields") or [])
        ]
    ports = [
        str(port["hostPort"])
        for container in spec["containers"]
        for port in container.get("ports") or []
        if port.get("hostPort")
    ]
    claims = list(pods.claims_of({"spec": spec, "metadata": {"name": ""}}))
    values["nodes"] = f": {', '.join(cordoned)}" if cordoned else ""
    values["taints"] = (
        f": {'; '.join(taints)}" if taints else f": {values['taint']}" if values["taint"] else ""
    )
    if "taint" in match[0] and not nodes and not values["taint"]:
        unseen = _table()["unseen"]
        values["taints"], values["less"] = (unseen["what"].format(seen=_recent(facts)), unseen["fix"])
    values["selector"] = f": {', '.join(selector)}" if selector else ""
    values["ports"] = ", ".join(ports)
    values["claims"] = f" {', '.join(claims)}" if claims else ""
    if "Too many pods" in match[0]:
        values["resource"] = "pods"
    if resource := values["resource"]:
        amount = needed(spec, resource)
        values["request"] = format_bytes(amount) if resource in BYTES else f"{amount:g}"
        room, values["less"] = shortage(facts, resource, amount)
        values["room"] = f": {room}" if room else ""
    if holders := holders_of_port(facts, map(int, ports)):
        values["room"] = f" by {holders}"
    return values


def _untolerated(node: Object, spec: Object) -> Iterator[str]:
    """Yield a node's taints that a pod does not tolerate, as text."""
    for taint in node["spec"].get("taints") or []:
        key, effect = taint["key"], taint["effect"]
        if effect == "PreferNoSchedule" or any(
            pods.tolerates(item, taint) for item in spec.get("tolerations") or []
        ):
            continue
        name = node["metadata"]["name"]
        meaning = _table()["controller_taints"].get(key)
        yield f"{name} {meaning}" if meaning else f"{name} {key}={taint.get('value', '')}:{effect}"


def _changed(pod: Object) -> str:
    """Find when a pod's conditions last changed: RFC 3339."""
    times = (item.get("lastTransitionTime") or "" for item in pod["status"].get("conditions") or ())
    return max(times, default=pod["status"].get("startTime") or "")


def _recent(facts: Facts) -> str:
    """Describe a recent node problem from the namespace's pods, for users who may not read nodes."""
    states = [(pod["metadata"], pod["status"].get("message"), _changed(pod)) for pod in facts.of("Pod")]
    states += [(event["involvedObject"], event.get("message"), event_time(event)) for event in facts.events]
    for about, message, time in reversed(states):
        match = SEEN.search(message or "")
        if match and facts.seconds_since(time) < SEEN_SECONDS:
            return f"; lately, of pod {about['name']}: {match[0]}"
    return ""


RULES = (unschedulable,)
