"""Causes in the network between pods: a NetworkPolicy that blocks all, a name that does not resolve.

A connection that is dropped is silent, so policies are evaluated as the network plugin does. Ports and
address ranges are not: a rule with either is taken as one that lets the run's connections through.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kitlib.causes.cause import CERTAIN, LIKELY, POSSIBLE, Cause
from kitlib.causes.facts import Facts
from kitlib.config import DATA
from kitlib.display.tracebacks import Line
from kitlib.k8s import pods
from kitlib.k8s.manifests import Object

ALLOWING = "manifests/network-policy/allow-training.yaml"
UNRESOLVED = re.compile(
    r"(?i)name or service not known|temporary failure in name resolution|no address associated with hostname"
    r"|could not resolve host|nodename nor servname|no such host"
)
HOST = re.compile(
    r"(?i)(?:addresses of [\[(]*|resolve (?:host(?:name)?:? )?|lookup |host=)['\"]?([a-z0-9][\w.-]*)"
)
QUIET_SECONDS = 20  # without a step, while its pods run
LAST_LINES, RECENT_SECONDS = 5, 60  # in which a name that is not resolved still is the reason
DNS_PORTS = (53, "53", "dns", "dns-tcp")


def denied(facts: Facts) -> Iterator[Cause]:
    """Find policies that keep the run's pods from each other, or from DNS, while no rank has done a step."""
    running = [pod for pod in facts.pods if pods.phase(pod) == "Running"]
    if facts.phase not in ("Running", "Pending") or not running:
        return
    if any('"step"' in line.text for lines in facts.logs.values() for line in lines):
        return
    since = min(facts.seconds_since((pod.get("status") or {}).get("startTime")) for pod in running)
    unresolved = next((line for line in _recent(facts) if UNRESOLVED.search(line.text)), None)
    if since < QUIET_SECONDS and unresolved is None:
        return
    pod = running[0]
    policies = [item for item in facts.of("NetworkPolicy") if selects(item["spec"].get("podSelector"), pod)]
    reasons = list(blocked(facts.of("NetworkPolicy"), pod, several=facts.desired > 1))
    if reasons:
        names = ", ".join(item["metadata"]["name"] for item in policies)
        yield Cause(
            kind="NetworkPolicy",
            who=f"NetworkPolicy {names}",
            what=f"keeps the run's pods {' and '.join(reasons)}; no rank has done a step for {since:.0f} s",
            fix=f"kubectl apply -n {pod['metadata'].get('namespace', '')} -f {DATA / ALLOWING}",
            evidence=(unresolved.text.strip(),) if unresolved else (),
            certainty=CERTAIN if unresolved or since > 2 * QUIET_SECONDS else LIKELY,
        )
    elif unresolved is not None and since > QUIET_SECONDS:
        yield from _unknown_name(facts, unresolved.text)


def _recent(facts: Facts) -> Iterator[Line]:
    """Yield the last lines of ranks outside the rendezvous: torch itself resolves a name again."""
    met = {
        state.rank
        for state in facts.processes
        if state.groups or (state.joining and not state.joining.address)
    }
    for rank, lines in facts.logs.items():
        for line in lines[-LAST_LINES:] if rank not in met else ():
            if facts.seconds_since(line.time and line.time[:19] + "Z") < RECENT_SECONDS:
                yield line


def blocked(all_policies: Iterable[Object], pod: Object, *, several: bool = True) -> Iterator[str]:
    """Yield the connections that policies deny to a pod, with ``several`` also those between replicas."""
    policies = [item for item in all_policies if selects(item["spec"].get("podSelector"), pod)]
    into = [item["spec"] for item in policies if "Ingress" in _types(item["spec"])]
    out = [item["spec"] for item in policies if "Egress" in _types(item["spec"])]
    if (
        several
        and into
        and not any(_allows_peer(rule, "from", pod) for spec in into for rule in spec.get("ingress") or [])
    ):
        yield "from being reached by each other (ingress)"
    rules = [rule for spec in out for rule in spec.get("egress") or []]
    if several and out and not any(_allows_peer(rule, "to", pod) for rule in rules):
        yield "from reaching each other (egress)"
    if out and not any(_allows_dns(rule) for rule in rules):
        yield "from DNS (egress to port 53)"


def _types(spec: Object) -> list[str]:
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _allows_peer(rule: Object, direction: str, pod: Object) -> bool:
    """Check whether a rule allows connections with pods like this one."""
    peers, ports = rule.get(direction), rule.get("ports") or []
    if ports and all(port.get("port") in DNS_PORTS for port in ports):
        return False
    return not peers or any(
        "ipBlock" in peer
        or ("namespaceSelector" in peer and "podSelector" not in peer)
        or ("podSelector" in peer and selects(peer["podSelector"], pod))
        for peer in peers
    )


def _allows_dns(rule: Object) -> bool:
    ports = rule.get("ports")
    if ports and not any(port.get("port") in (None, *DNS_PORTS) for port in ports):
        return False
    return not rule.get("to") or any("ipBlock" in peer or "namespaceSelector" in peer for peer in rule["to"])


def selects(selector: Object | None, pod: Object) -> bool:
    """Evaluate a label selector; an empty one selects all."""
    labels = pod["metadata"].get("labels") or {}
    expressions = (selector or {}).get("matchExpressions") or []
    return all(
        labels.get(key) == value for key, value in ((selector or {}).get("matchLabels") or {}).items()
    ) and all(_meets(labels, item) for item in expressions)


def _meets(labels: dict[str, Any], expression: Object) -> bool:
    key, values = expression["key"], expression.get("values") or []
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(expression["operator"], False)


def _unknown_name(facts: Facts, text: str) -> Iterator[Cause]:
    """Find why a name in a rank's log is not resolved."""
    match = HOST.search(text)
    host = match[1].rstrip(".") if match else ""
    service = host.split(".")[1 if host.count(".") == 1 else 0] if host else ""
    known = {item["metadata"]["name"] for item in facts.of("Service")}
    if host and "Service" not in facts.missing and not known & set(host.split(".")):
        what, fix = (
            f"is not resolved: there is no Service {service}",
            "create the headless Service, or correct the address",
        )
        yield Cause(
            kind="NoService",
            who=f"name {host}",
            what=what,
            fix=fix,
            evidence=(text.strip(),),
            certainty=LIKELY,
        )
        return
    fix = "kubectl get pods -n kube-system -l k8s-app=kube-dns; kubectl get networkpolicy"
    what = "is not resolved: DNS does not answer, or the pod of that name does not run yet"
    yield Cause(
        kind="DNS",
        who=f"name {host or '?'}",
        what=what,
        fix=fix,
        evidence=(text.strip(),),
        certainty=POSSIBLE,
    )


RULES = (denied,)
