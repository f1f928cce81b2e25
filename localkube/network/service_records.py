"""The DNS data of one Service: its addresses, its endpoints by hostname, its named ports.

From EndpointSlices, whose controller is up to a second late, with two corrections for pods that look each
other up as they start: a ready selected pod counts at once, and one that has ended no longer counts. Pure.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from localkube.api_client import Informer
from localkube.api_path import Object

Key = tuple[str, str]
OWNER = "kubernetes.io/service-name"
# Of one Service: more would delay all Services, and each port takes half a kilobyte, twice.
MAX_PORTS = 256

log = logging.getLogger(__name__)


@dataclass
class ServiceNames:
    """The DNS data of a Service.

    Args:
        addresses: Those of the Service: its ClusterIPs, or its endpoints' if it is headless.
        hosts: The addresses of each endpoint's hostname.
        ports: For (``_name``, ``_protocol``) numbers, each with its hostname ("" for the Service).
        external: The foreign name that it is an alias of, if any.
    """

    addresses: list[str] = field(default_factory=list)
    hosts: dict[str, list[str]] = field(default_factory=dict)
    ports: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    external: str = ""


def service_names(key: Key, service: Object, *, slices: Informer, pods: Informer) -> ServiceNames:
    """Compute the DNS data of the Service ``key``, (namespace, name)."""
    spec, names = service["spec"], ServiceNames()
    if spec.get("type") == "ExternalName":
        names.external = spec["externalName"].rstrip(".").lower()
        return names
    headless = is_headless(service)
    include_unready = spec.get("publishNotReadyAddresses", False)
    endpoints = [*_in_slices(key, include_unready, slices, pods), *_in_pods(key, spec, include_unready, pods)]
    for address, hostname, ports in endpoints:
        _add(names.hosts, hostname, address)
        for port in ports if headless else ():
            if port.get("name") and port.get("port"):
                _add(names.ports, _port_labels(port), (port["port"], hostname))
    if headless:
        names.addresses = list(dict.fromkeys(address for address, _, _ in endpoints))
    else:
        names.addresses = cluster_ips(service)
        for port in spec.get("ports") or ():
            if port.get("name"):
                _add(names.ports, _port_labels(port), (port["port"], ""))
    return names


def is_headless(service: Object) -> bool:
    return service["spec"].get("clusterIP") == "None"


def cluster_ips(service: Object) -> list[str]:
    """List the IPv4 addresses of a Service, none if it is headless or an alias."""
    return [ip for ip in service["spec"].get("clusterIPs") or () if ip != "None" and ":" not in ip]


def slices_of(key: Key, slices: Informer) -> list[Object]:
    """List the IPv4 EndpointSlices of a Service."""
    return [item for item in slices.store.values() if owner(item) == key and item["addressType"] == "IPv4"]


def owner(item: Object) -> Key:
    """Find the Service that an EndpointSlice belongs to."""
    return item["metadata"].get("namespace", ""), (item["metadata"].get("labels") or {}).get(OWNER, "")


def limit_ports(item: dict[str, Any]) -> None:
    """Remove the ports of a Service or EndpointSlice that are not served: all but the first ones by name."""
    spec = item.get("spec") or item
    ports = spec.get("ports") or ()
    if len(ports) > MAX_PORTS:
        key = f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        log.warning("%s: only the first %d of its ports, by name, are served", key, MAX_PORTS)
        spec["ports"] = sorted(ports, key=lambda port: port.get("name") or "")[:MAX_PORTS]


def has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def facts(pod: Object) -> tuple[Any, ...]:
    """Collect the fields of a pod that DNS data depend on."""
    spec, metadata, status = pod["spec"], pod["metadata"], pod.get("status") or {}
    return (
        status.get("podIP"),
        status.get("phase"),
        _is_ready(pod),
        bool(metadata.get("deletionTimestamp")),
        metadata.get("uid"),
        metadata.get("labels"),
        spec.get("hostname"),
        spec.get("subdomain"),
    )


EndpointRecords = Iterator[tuple[str, str, list[Object]]]


def _in_slices(key: Key, include_unready: bool, slices: Informer, pods: Informer) -> EndpointRecords:
    """Yield address, hostname and ports of endpoints, except those whose pods are known to be gone."""
    for item in slices_of(key, slices):
        for endpoint in item.get("endpoints") or ():
            ready = (endpoint.get("conditions") or {}).get("ready") is not False
            if (ready or include_unready) and not _is_gone(key[0], endpoint, pods):
                for address in endpoint["addresses"]:
                    hostname = endpoint.get("hostname") or address.replace(".", "-")
                    yield address, hostname, item.get("ports") or []


def _in_pods(key: Key, spec: Object, include_unready: bool, pods: Informer) -> EndpointRecords:
    """Yield the same for selected pods with a hostname, which may not be in an EndpointSlice yet."""
    selector = spec.get("selector")
    for (namespace, _), pod in pods.store.items() if selector else ():
        if namespace != key[0] or pod["spec"].get("subdomain") != key[1]:
            continue
        labels = pod["metadata"].get("labels") or {}
        hostname, address = pod["spec"].get("hostname"), (pod.get("status") or {}).get("podIP")
        selected = all(labels.get(name) == value for name, value in (selector or {}).items())
        terminating = bool(pod["metadata"].get("deletionTimestamp"))
        published = not has_ended(pod) and (include_unready or (_is_ready(pod) and not terminating))
        if hostname and address and selected and published:
            yield address, hostname, _known_ports(spec)


def _known_ports(spec: Object) -> list[Object]:
    """Collect the ports of a Service with numeric targets."""
    ports = ({**port, "port": port.get("targetPort") or port["port"]} for port in spec.get("ports") or ())
    return [port for port in ports if isinstance(port["port"], int)]


def _is_gone(namespace: str, endpoint: Object, pods: Informer) -> bool:
    target = endpoint.get("targetRef") or {}
    if target.get("kind") != "Pod" or not pods.synced.is_set():
        return False
    pod = pods.store.get((namespace, target["name"]))
    return pod is None or has_ended(pod) or pod["metadata"].get("uid") != target.get("uid")


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _port_labels(port: Object) -> tuple[str, str]:
    return f"_{port['name']}", "_" + (port.get("protocol") or "TCP").lower()


def _add(lists: dict[Any, list[Any]], key: Any, value: Any) -> None:
    known = lists.setdefault(key, [])
    if value not in known:
        known.append(value)
