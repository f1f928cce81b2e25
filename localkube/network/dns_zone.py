"""The DNS records of a cluster's Services and pods, computed from informers.

Source: the Kubernetes DNS specification, https://github.com/kubernetes/dns/blob/master/docs/specification.md.
"""

import ipaddress
from dataclasses import dataclass
from typing import Any

from localkube.api_client import Informer
from localkube.api_path import Object
from localkube.network.service_records import (
    Key,
    ServiceNames,
    facts,
    has_ended,
    is_headless,
    service_names,
)

SCHEMA = "1.1.0"
DOMAIN = "cluster.local"
NONE: dict[str, Any] = {"spec": {}}  # no Service
NETWORKS = ("10.244.0.0/16", "10.96.0.0/16")


@dataclass(frozen=True)
class ResourceRecord:
    """A DNS resource record.

    Args:
        name: The owner, in lower case, without the last dot.
        kind: A, SRV, PTR, TXT or CNAME.
        value: An address, a name, a text; for SRV, (port, target).
    """

    name: str
    kind: str
    value: Any


@dataclass(frozen=True)
class ZoneAnswer:
    """The records of a name, of the requested kind, and additional ones.

    ``exists`` False means NXDOMAIN; True without records, NODATA.
    """

    exists: bool
    records: tuple[ResourceRecord, ...] = ()
    additional: tuple[ResourceRecord, ...] = ()


NOTHING = ZoneAnswer(exists=False)


class Zone:
    """The zone of one cluster."""

    def __init__(self, *, services: Informer, slices: Informer, pods: Informer) -> None:
        self.domain = DOMAIN
        self.version = 0
        self._services, self._slices, self._pods = services, slices, pods
        self._networks = [ipaddress.ip_network(network) for network in NETWORKS]
        self._known: dict[Key, ServiceNames] = {}
        services.subscribe(self._changed)
        slices.subscribe(self._changed)
        pods.subscribe(self._pod_changed)

    def owns(self, name: str, namespace: str = "") -> bool:
        """Check whether ``name`` (lower case, no last dot) is answered here and never upstream.

        Besides the zone these are the short forms ``….svc`` and ``<host>.<headless Service>``, which
        resolvers try after their search list: a rank that looks up a peer too early must get NXDOMAIN at
        once, also on a host without a network. The latter are only those of the querying pod's namespace: a
        Service may be called ``org``.
        """
        labels = name.split(".")
        return (
            self._in_domain(name)
            or labels[-1] == "svc"
            or (len(labels) == 2 and is_headless(self._services.store.get((namespace, labels[1]), NONE)))
            or self._reverse(name) is not None
        )

    def lookup(self, name: str, kind: str) -> ZoneAnswer:
        """Look up a name that the zone owns."""
        address = self._reverse(name)
        if address is not None:
            return _answer(self._pointers(name, address), kind)
        if not self._in_domain(name):
            return NOTHING
        labels = name[: -len(self.domain) - 1].split(".") if name != self.domain else []
        match labels:
            case [] | ["svc"] | ["pod"]:
                return ZoneAnswer(exists=True)
            case ["dns-version"]:
                return _answer([ResourceRecord(name, "TXT", SCHEMA)], kind)
            case [namespace, "svc" | "pod"]:
                return ZoneAnswer(exists=any(key[0] == namespace for key in self._services.store))
            case [dashed, namespace, "pod"]:
                return _answer(self._pod(name, dashed, namespace), kind)
            case [*host, service, namespace, "svc"]:
                names = self._names((namespace, service))
                return self._service(name, kind, names, tuple(host)) if names else NOTHING
        return NOTHING

    def _in_domain(self, name: str) -> bool:
        return name == self.domain or name.endswith("." + self.domain)

    def _service(self, name: str, kind: str, names: ServiceNames, host: tuple[str, ...]) -> ZoneAnswer:
        owner = ".".join(name.split(".")[len(host) :])
        match host:
            case () if names.external:
                return ZoneAnswer(exists=True, records=(ResourceRecord(name, "CNAME", names.external),))
            case ():
                return _answer([ResourceRecord(name, "A", address) for address in names.addresses], kind)
            case (("_tcp" | "_udp" | "_sctp") as protocol,):
                return ZoneAnswer(exists=any(port[1] == protocol for port in names.ports))
            case (hostname,):
                return _answer(
                    [ResourceRecord(name, "A", address) for address in names.hosts.get(hostname, ())], kind
                )
            case (port, protocol):
                targets = [
                    (number, f"{host}.{owner}" if host else owner, names.hosts.get(host, names.addresses))
                    for number, host in names.ports.get((port, protocol), ())
                ]
                answer = _answer(
                    [ResourceRecord(name, "SRV", (number, target)) for number, target, _ in targets], kind
                )
                extra = tuple(
                    ResourceRecord(target, "A", a) for _, target, addresses in targets for a in addresses
                )
                return ZoneAnswer(answer.exists, answer.records, extra if answer.records else ())
        return NOTHING

    def _names(self, key: Key) -> ServiceNames | None:
        service = self._services.store.get(key)
        if service is None:
            return None
        if key not in self._known:
            self._known[key] = service_names(key, service, slices=self._slices, pods=self._pods)
        return self._known[key]

    def _pod(self, name: str, dashed: str, namespace: str) -> list[ResourceRecord]:
        address = dashed.replace("-", ".")
        for (pod_namespace, _), pod in self._pods.store.items():
            if pod_namespace == namespace and (pod.get("status") or {}).get("podIP") == address:
                return [] if has_ended(pod) else [ResourceRecord(name, "A", address)]
        return []

    def _pointers(self, name: str, address: str) -> list[ResourceRecord]:
        owners = []
        for key, service in self._services.store.items():
            if (names := self._names(key)) is None:
                continue
            owner = f"{key[1]}.{key[0]}.svc.{self.domain}"
            if is_headless(service):
                owners += [f"{host}.{owner}" for host, listed in names.hosts.items() if address in listed]
            elif address in names.addresses:
                owners.append(owner)
        return [ResourceRecord(name, "PTR", target) for target in owners]

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
        if change == "DELETED" or before is None or facts(pod) != facts(before):
            self._changed()


def _answer(records: list[ResourceRecord], kind: str) -> ZoneAnswer:
    matching = tuple(record for record in records if kind in (record.kind, "ANY"))
    return ZoneAnswer(exists=bool(records), records=matching)
