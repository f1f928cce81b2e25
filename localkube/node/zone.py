"""The names of a cluster: the records of its Services and pods, derived from what the API server says now.

Nothing is stored but a memory of the last answers, which any relevant change forgets; so a name resolves the
moment a watch has told of it. EndpointSlices are the truth for headless Services, with two corrections, as
their controller writes in batches, up to a second late, and training pods look each other up as they start:
a pod that is ready and selected counts at once, and one that has ended or is gone no longer counts.

Source: the Kubernetes DNS specification, https://github.com/kubernetes/dns/blob/master/docs/specification.md.
Not here: packets, sockets and foreign names (``dns.py``).
"""

import asyncio
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Object = Mapping[str, Any]
SCHEMA = "1.1.0"
OWNER = "kubernetes.io/service-name"
NETWORKS = ("10.244.0.0/16", "10.96.0.0/12")


class Mirror(Protocol):
    """What is used of ``api.Watch``."""

    store: Mapping[tuple[str, str], Object]
    synced: asyncio.Event

    def subscribe(self, callback: Any) -> None: ...


@dataclass(frozen=True)
class Record:
    """One resource record.

    Args:
        name: The owner, in lower case, without the last dot.
        kind: A, SRV, PTR, TXT or CNAME.
        value: An address, a name, a text; for SRV, (port, target).
    """

    name: str
    kind: str
    value: Any


@dataclass(frozen=True)
class Answer:
    """What the zone says of a name: records of the kind that was asked for, and useful others.

    ``exists`` False means NXDOMAIN; True without records means that the name has other kinds only.
    """

    exists: bool
    records: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()


NOTHING = Answer(exists=False)


@dataclass
class _Names:
    """The addresses behind one Service: its own, those of its endpoints by hostname, its named ports."""

    addresses: list[str] = field(default_factory=list)
    hosts: dict[str, list[str]] = field(default_factory=dict)
    ports: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    external: str = ""

    def add_host(self, hostname: str, address: str) -> None:
        known = self.hosts.setdefault(hostname, [])
        if address not in known:
            known.append(address)


class Zone:
    """Answer questions about the names of one cluster, from watches.

    Args:
        services: Watch of all Services.
        slices: Watch of all EndpointSlices.
        pods: Watch of all pods (at least all that can be endpoints). Used only if its ``synced`` is set.
        domain: The cluster domain.
        networks: The ranges of pods and Services, whose reverse names are answered here.

    Example:
        >>> zone.lookup("ddp-0.ddp.default.svc.cluster.local", "A").records[0].value
        '10.244.1.2'
    """

    def __init__(
        self,
        *,
        services: Mirror,
        slices: Mirror,
        pods: Mirror,
        domain: str = "cluster.local",
        networks: tuple[str, ...] = NETWORKS,
    ) -> None:
        self.domain = domain.lower()
        self.version = 0
        self._services, self._slices, self._pods = services, slices, pods
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._known: dict[tuple[str, str], _Names] = {}
        services.subscribe(self._changed)
        slices.subscribe(self._changed)
        pods.subscribe(self._pod_changed)

    def owns(self, name: str) -> bool:
        """Tell whether ``name`` (lower case, no last dot) is answered here and never asked elsewhere.

        Besides the zone these are the short forms ``<host>.<headless Service>`` and ``….svc``, which a pod's
        resolver tries as they stand after its search list: a rank that asks for a peer too early must get its
        denial at once, also on a host without a network.
        """
        labels = name.split(".")
        return (
            self._in_domain(name)
            or labels[-1] == "svc"
            or (len(labels) == 2 and self._is_headless(labels[1]))
            or self._reverse(name) is not None
        )

    def lookup(self, name: str, kind: str) -> Answer:
        """Return what the zone has for a name that it owns."""
        address = self._reverse(name)
        if address is not None:
            return _answer(self._pointers(name, address), kind)
        if not self._in_domain(name):
            return NOTHING
        labels = name[: -len(self.domain) - 1].split(".") if name != self.domain else []
        match labels:
            case [] | ["svc"] | ["pod"]:
                return Answer(exists=True)
            case ["dns-version"]:
                return _answer([Record(name, "TXT", SCHEMA)], kind)
            case [namespace, "svc" | "pod"]:
                return Answer(exists=any(key[0] == namespace for key in self._services.store))
            case [dashed, namespace, "pod"]:
                return _answer(self._pod(name, dashed, namespace), kind)
            case [*host, service, namespace, "svc"]:
                names = self._names((namespace, service))
                return self._service(name, kind, names, tuple(host)) if names else NOTHING
        return NOTHING

    def _in_domain(self, name: str) -> bool:
        return name == self.domain or name.endswith("." + self.domain)

    def _is_headless(self, name: str) -> bool:
        services = self._services.store.items()
        return any(key[1] == name and item["spec"].get("clusterIP") == "None" for key, item in services)

    def _service(self, name: str, kind: str, names: _Names, host: tuple[str, ...]) -> Answer:
        owner = ".".join(name.split(".")[len(host) :])
        match host:
            case () if names.external:
                return Answer(exists=True, records=(Record(name, "CNAME", names.external),))
            case ():
                return _answer([Record(name, "A", address) for address in names.addresses], kind)
            case (("_tcp" | "_udp" | "_sctp") as protocol,):
                return Answer(exists=any(port[1] == protocol for port in names.ports))
            case (hostname,):
                return _answer(
                    [Record(name, "A", address) for address in names.hosts.get(hostname, ())], kind
                )
            case (port, protocol):
                found = [
                    (number, f"{host}.{owner}" if host else owner, names.hosts.get(host, names.addresses))
                    for number, host in names.ports.get((port, protocol), ())
                ]
                answer = _answer([Record(name, "SRV", (number, target)) for number, target, _ in found], kind)
                extra = tuple(Record(target, "A", a) for _, target, addresses in found for a in addresses)
                return Answer(answer.exists, answer.records, extra if answer.records else ())
        return NOTHING

    def _names(self, key: tuple[str, str]) -> _Names | None:
        service = self._services.store.get(key)
        if service is None:
            return None
        if key not in self._known:
            self._known[key] = self._derive(key, service)
        return self._known[key]

    def _derive(self, key: tuple[str, str], service: Object) -> _Names:
        spec, names = service["spec"], _Names()
        if spec.get("type") == "ExternalName":
            names.external = spec["externalName"].rstrip(".").lower()
            return names
        headless = spec.get("clusterIP") == "None"
        for address, hostname, ports in self._endpoints(key, spec):
            names.add_host(hostname, address)
            for port in ports if headless else ():
                entry = names.ports.setdefault(_port_labels(port), [])
                if (port["port"], hostname) not in entry:
                    entry.append((port["port"], hostname))
        if headless:
            names.addresses = list(dict.fromkeys(a for found in names.hosts.values() for a in found))
        else:
            names.addresses = [ip for ip in spec.get("clusterIPs") or () if ":" not in ip]
            for port in spec.get("ports") or ():
                names.ports[_port_labels(port)] = [(port["port"], "")]
        names.ports.pop(("", ""), None)
        return names

    def _endpoints(self, key: tuple[str, str], spec: Object) -> Iterator[tuple[str, str, list[Object]]]:
        """Yield address, hostname and ports of what is ready behind a Service."""
        namespace, service = key
        unready_too = spec.get("publishNotReadyAddresses", False)
        for item in self._slices.store.values():
            metadata = item["metadata"]
            owner = (metadata.get("labels") or {}).get(OWNER)
            if owner != service or metadata["namespace"] != namespace or item.get("addressType") != "IPv4":
                continue
            for endpoint in item.get("endpoints") or ():
                ready = (endpoint.get("conditions") or {}).get("ready") is not False
                if not (ready or unready_too) or self._gone(namespace, endpoint):
                    continue
                for address in endpoint["addresses"]:
                    hostname = endpoint.get("hostname") or address.replace(".", "-")
                    yield address, hostname, item.get("ports") or []
        selector = spec.get("selector")
        for (pod_namespace, _), pod in self._pods.store.items() if selector else ():
            if pod_namespace != namespace or pod["spec"].get("subdomain") != service:
                continue
            labels = pod["metadata"].get("labels") or {}
            hostname, address = pod["spec"].get("hostname"), (pod.get("status") or {}).get("podIP")
            selected = all(labels.get(name) == value for name, value in selector.items())
            if hostname and address and selected and _published(pod, unready_too):
                yield address, hostname, _named_numbers(spec)

    def _gone(self, namespace: str, endpoint: Object) -> bool:
        target = endpoint.get("targetRef") or {}
        if target.get("kind") != "Pod" or not self._pods.synced.is_set():
            return False
        pod = self._pods.store.get((namespace, target["name"]))
        return pod is None or _ended(pod) or pod["metadata"].get("uid") != target.get("uid")

    def _pod(self, name: str, dashed: str, namespace: str) -> list[Record]:
        address = dashed.replace("-", ".")
        for (pod_namespace, _), pod in self._pods.store.items():
            if pod_namespace == namespace and (pod.get("status") or {}).get("podIP") == address:
                return [] if _ended(pod) else [Record(name, "A", address)]
        return []

    def _pointers(self, name: str, address: str) -> list[Record]:
        found = []
        for key in self._services.store:
            names = self._names(key)
            owner = f"{key[1]}.{key[0]}.svc.{self.domain}"
            if self._services.store[key]["spec"].get("clusterIP") != "None":
                found += [owner] if address in names.addresses else []
            else:
                found += [
                    f"{host}.{owner}" for host, addresses in names.hosts.items() if address in addresses
                ]
        return [Record(name, "PTR", target) for target in found]

    def _reverse(self, name: str) -> str | None:
        if not name.endswith(".in-addr.arpa"):
            return None
        try:
            address = ipaddress.IPv4Address(".".join(reversed(name.split(".")[:-2])))
        except ValueError:
            return None
        return str(address) if any(address in network for network in self._networks) else None

    def _changed(self, *_: object) -> None:
        self.version += 1
        self._known.clear()

    def _pod_changed(self, change: str, pod: Object, before: Object | None) -> None:
        if change == "DELETED" or before is None or _facts(pod) != _facts(before):
            self._changed()


def _answer(records: list[Record], kind: str) -> Answer:
    wanted = tuple(record for record in records if kind in (record.kind, "ANY"))
    return Answer(exists=bool(records), records=wanted)


def _port_labels(port: Object) -> tuple[str, str]:
    name = port.get("name")
    return (f"_{name}", "_" + (port.get("protocol") or "TCP").lower()) if name else ("", "")


def _named_numbers(spec: Object) -> list[Object]:
    """Return the ports of a Service whose numbers are known without looking into the pod."""
    ports = ({**port, "port": port.get("targetPort") or port["port"]} for port in spec.get("ports") or ())
    return [port for port in ports if isinstance(port["port"], int)]


def _conditions(pod: Object) -> Iterator[Object]:
    yield from (pod.get("status") or {}).get("conditions") or ()


def _ready(pod: Object) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in _conditions(pod))


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _published(pod: Object, unready_too: bool) -> bool:
    leaving = bool(pod["metadata"].get("deletionTimestamp"))
    return not _ended(pod) and (unready_too or (_ready(pod) and not leaving))


def _facts(pod: Object) -> tuple[Any, ...]:
    """Return all that records depend on."""
    spec, metadata, status = pod["spec"], pod["metadata"], pod.get("status") or {}
    return (
        status.get("podIP"),
        status.get("phase"),
        _ready(pod),
        bool(metadata.get("deletionTimestamp")),
        metadata.get("uid"),
        metadata.get("labels"),
        spec.get("hostname"),
        spec.get("subdomain"),
    )
