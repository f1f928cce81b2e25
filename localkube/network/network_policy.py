"""NetworkPolicies: which connections a pod may accept and open. Pure.

How the kernel enforces them is in ``policy_enforcer.py``.

Source: https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localkube.api_path import Object

LAST_PORT = 65535
ANY = "0.0.0.0/0"


@dataclass(frozen=True)
class Peer:
    """A pod as policies see it.

    Attributes:
        labels: Its labels, and ``namespace_labels`` those of its namespace.
        ports: The numbers of its named ports, by name and protocol.
    """

    namespace: str
    name: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class PortRange:
    """Ports of TCP, UDP or SCTP, the first and the last included."""

    protocol: str = "TCP"
    first: int = 0
    last: int = LAST_PORT

    def has(self, protocol: str, port: int) -> bool:
        return protocol == self.protocol and self.first <= port <= self.last


@dataclass(frozen=True, order=True)
class AllowRule:
    """Connections that are allowed.

    Attributes:
        networks: The addresses at the other end, as CIDRs.
        excepted: CIDRs within them that are excluded.
        ports: None for every port, and for protocols without ports.
    """

    networks: tuple[str, ...]
    excepted: tuple[str, ...] = ()
    ports: tuple[PortRange, ...] | None = None

    def allows(self, address: str, protocol: str, port: int) -> bool:
        parsed = ipaddress.ip_address(address)
        return (
            _within(parsed, self.networks)
            and not _within(parsed, self.excepted)
            and (self.ports is None or any(allowed.has(protocol, port) for allowed in self.ports))
        )


@dataclass(frozen=True)
class PodRules:
    """The rules of one pod in each direction; None where no policy selects it and everything is allowed."""

    ingress: tuple[AllowRule, ...] | None = None
    egress: tuple[AllowRule, ...] | None = None

    def accepts(self, address: str, protocol: str, port: int) -> bool:
        """Check whether it may accept a connection from ``address`` on its port."""
        return _allowed(self.ingress, address, protocol, port)

    def opens(self, address: str, protocol: str, port: int) -> bool:
        """Check whether it may connect to a port of ``address``."""
        return _allowed(self.egress, address, protocol, port)


UNRESTRICTED = PodRules()


def pod_rules(pod: Peer, policies: Iterable[Object], peers: Sequence[Peer]) -> PodRules:
    """Compute the rules of a pod.

    Args:
        policies: NetworkPolicies of all namespaces.
        peers: All pods that have an address.
    """
    ingress: list[AllowRule] | None = None
    egress: list[AllowRule] | None = None
    for policy in policies:
        if policy["metadata"]["namespace"] != pod.namespace or not selects(
            policy["spec"].get("podSelector"), pod.labels
        ):
            continue
        spec = policy["spec"]
        types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
        if "Ingress" in types:
            ingress = ingress or []
            for rule in spec.get("ingress") or ():
                ports = _ports(rule.get("ports"), pod)
                ingress += _rules(rule.get("from"), pod.namespace, peers, lambda _, ports=ports: ports)
        if "Egress" in types:
            egress = egress or []
            for rule in spec.get("egress") or ():
                listed = rule.get("ports")
                egress += _rules(
                    rule.get("to"), pod.namespace, peers, lambda to, listed=listed: _ports(listed, to)
                )
    return PodRules(
        *(None if rules is None else tuple(sorted(set(rules), key=repr)) for rules in (ingress, egress))
    )


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Match labels by a LabelSelector; an empty one selects everything.

    Example:
        >>> selects({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {})
        True
    """
    selector = selector or {}
    match_labels = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in match_labels.items()):
        return False
    return all(meets(expression, labels) for expression in selector.get("matchExpressions") or ())


def meets(expression: Object, labels: Mapping[str, str]) -> bool:
    """Match labels by one of the operators In, NotIn, Exists and DoesNotExist."""
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def _rules(
    sides: Sequence[Object] | None, namespace: str, peers: Sequence[Peer], ports: Any
) -> list[AllowRule]:
    """Compute the rules of one entry of ``ingress`` or ``egress``.

    Args:
        sides: Its ``from`` or ``to``; none for all peers.
        namespace: The policy's.
        ports: Returns the ports of a peer, or with None of an address that is no pod's; an empty list for no
            ports.
    """
    selected = [peer for peer in peers if any(_is_peer(side, namespace, peer) for side in sides or ())]
    by_ports: dict[tuple[PortRange, ...] | None, list[str]] = {}
    for peer in selected:
        by_ports.setdefault(_tuple(ports(peer)), []).append(f"{peer.address}/32")
    rules = [AllowRule(tuple(sorted(networks)), ports=ranges) for ranges, networks in by_ports.items()]
    elsewhere = _tuple(ports(None))
    if not sides:
        # A named port is that of the pod at the other end.
        named = [] if elsewhere is None else peers
        rules += [AllowRule((f"{peer.address}/32",), ports=_tuple(ports(peer))) for peer in named]
        rules.append(AllowRule((ANY,), ports=elsewhere))
    for block in (side["ipBlock"] for side in sides or () if side.get("ipBlock")):
        if ":" not in block["cidr"]:
            rules.append(AllowRule((block["cidr"],), tuple(block.get("except") or ()), elsewhere))
    return [rule for rule in rules if rule.ports != ()]


def _is_peer(side: Object, namespace: str, peer: Peer) -> bool:
    if side.get("ipBlock"):
        return False
    spaces, pods = side.get("namespaceSelector"), side.get("podSelector")
    within = peer.namespace == namespace if spaces is None else selects(spaces, peer.namespace_labels)
    return within and selects(pods, peer.labels)


def _ports(listed: Sequence[Object] | None, pod: Peer | None) -> list[PortRange] | None:
    """Resolve the ports of a rule on a pod; None means every port."""
    if not listed:
        return None
    ranges = []
    for policy in listed:
        protocol, port = policy.get("protocol") or "TCP", policy.get("port")
        if port is None:
            ranges.append(PortRange(protocol))
        elif isinstance(port, int):
            ranges.append(PortRange(protocol, port, policy.get("endPort") or port))
        elif pod and (port, protocol) in pod.ports:
            number = pod.ports[port, protocol]
            ranges.append(PortRange(protocol, number, number))
    return ranges


def _tuple(ports: Sequence[PortRange] | None) -> tuple[PortRange, ...] | None:
    return None if ports is None else tuple(sorted(set(ports)))


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Iterable[str]) -> bool:
    return any(address in ipaddress.ip_network(network, strict=False) for network in networks)


def _allowed(rules: Sequence[AllowRule] | None, address: str, protocol: str, port: int) -> bool:
    return rules is None or any(rule.allows(address, protocol, port) for rule in rules)


def peer(pod: Object, namespace_labels: Mapping[str, str]) -> Peer | None:
    """Read a pod; None if policies do not cover it: no address, hostNetwork, or terminated."""
    spec, status, metadata = pod["spec"], pod.get("status") or {}, pod["metadata"]
    if spec.get("hostNetwork") or not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    ports = {
        (port["name"], port.get("protocol") or "TCP"): port["containerPort"]
        for container in (*spec["containers"], *(spec.get("initContainers") or ()))
        for port in container.get("ports") or ()
        if port.get("name")
    }
    name, namespace = metadata["name"], metadata["namespace"]
    return Peer(namespace, name, status["podIP"], metadata.get("labels") or {}, namespace_labels, ports)
