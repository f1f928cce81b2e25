"""ClusterIP Services by a user-space proxy: nftables and IPVS need programs or rights that a laptop may lack.

The whole Service range is local to the network namespace, so an address only needs a listener; one without
endpoints refuses connections.

NodePorts are on the address of each node, also those of LoadBalancers, which get no address here.

Limits: endpoints see the proxy's address; a connection whose endpoints all refuse is accepted and reset;
connections through a Service end with the kubelet; external IPs and SCTP are not supported. Headless and
ExternalName Services are DNS only.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from localkube.api_client import Informer, object_key
from localkube.api_path import Object
from localkube.network.fair_shares import RelayLimits
from localkube.network.node_listeners import Front, Listeners, NodePlace, NodeSockets
from localkube.network.relay import LISTENERS, Backend, Choose, Permits, permit_all
from localkube.network.service_records import Key, cluster_ips, owner, slices_of

AFFINITY_SECONDS = 10800
LOCAL = "Local"
# Backends, the seconds of affinity, and which of the backends are for a client.
Target = tuple[list[Backend], float | None, Callable[[str], Collection[Backend]] | None]


@dataclass(frozen=True, order=True)
class ServiceEndpoint:
    """An endpoint of a Service port."""

    backend: Backend
    node: str = ""
    for_nodes: tuple[str, ...] = ()
    for_zones: tuple[str, ...] = ()


def nearest(
    endpoints: Sequence[ServiceEndpoint], client: NodePlace | None, *, local: bool
) -> Sequence[ServiceEndpoint]:
    """Choose the endpoints for a client.

    Args:
        client: The client's node; None for a client outside of the nodes.
        local: Only endpoints on the client's node, by the Service's traffic policy.
    """
    if client is None:
        return endpoints
    if local:
        return [endpoint for endpoint in endpoints if endpoint.node == client.name]
    for hints, place in (("for_nodes", client.name), ("for_zones", client.zone)):
        if all(getattr(endpoint, hints) for endpoint in endpoints):
            near = [endpoint for endpoint in endpoints if place in getattr(endpoint, hints)]
            if near:
                return near
    return endpoints


class Balancer:
    """The ready endpoints of one Service port, round robin or with client affinity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.backends: tuple[Backend, ...] = ()
        self._near: Callable[[str], Collection[Backend]] | None = None
        self.affinity_seconds: float | None = None
        self._clock = clock
        self._next = 0
        self._clients: dict[str, tuple[Backend, float]] = {}

    def update(
        self,
        backends: Sequence[Backend],
        affinity_seconds: float | None,
        near: Callable[[str], Collection[Backend]] | None = None,
    ) -> None:
        """Replace the endpoints; clients of those that remain keep them.

        Args:
            near: Returns the endpoints for a client, by its address; by default all.
        """
        self.backends = tuple(backends)
        self._near = near
        self.affinity_seconds = affinity_seconds
        self._clients = {
            client: entry
            for client, entry in self._clients.items()
            if affinity_seconds is not None and entry[0] in self.backends
        }

    def candidates(self, client: str) -> tuple[Backend, ...]:
        near = self._near(client) if self._near else self.backends
        return tuple(backend for backend in self.backends if backend in near)

    def choose(self, client: str) -> Iterator[Backend]:
        """Yield the endpoints to try for a client, each once.

        With affinity, the last one taken from the iterator becomes the client's.
        """
        backends, known = self.candidates(client), self._clients.get(client)
        first = self._next
        if known and known[1] > self._clock() and known[0] in backends:
            first = backends.index(known[0])
        else:
            self._next += 1
        for number in range(len(backends)):
            backend = backends[(first + number) % len(backends)]
            if self.affinity_seconds is not None:
                self._clients[client] = (backend, self._clock() + self.affinity_seconds)
            yield backend


class ServiceProxy:
    """Listens on every ClusterIP and NodePort that has endpoints; an async context manager.

    Established connections survive changes of their Service.

    Args:
        nodes: The nodes, for NodePorts and traffic policies.
        sockets: Makes sockets on their addresses; without it there are no NodePorts.
        permits: Decides whether a client may connect to an endpoint by a protocol.
        place: In plain mode, maps a Service's (ip, port) to the address to listen on,
        reach: and an endpoint's to the one to connect to.
        limits: The shares of one client and of one namespace.
    """

    def __init__(
        self,
        *,
        services: Informer,
        slices: Informer,
        nodes: Sequence[NodePlace] = (),
        sockets: NodeSockets | None = None,
        permits: Permits = permit_all,
        place: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
        reach: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
        limits: RelayLimits | None = None,
    ) -> None:
        self._services, self._slices = services, slices
        self._reach, self._permits = reach, permits
        self._nodes = tuple(nodes) if sockets else ()
        self._listeners = Listeners(sockets, limits or RelayLimits(), place)
        self._fronts: dict[Key, dict[Front, Balancer]] = {}
        self._changed: set[Key] = set()
        self._scheduled: asyncio.Handle | None = None
        self._open = False

    async def __aenter__(self) -> "ServiceProxy":
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._services.subscribe(lambda _change, item, _before: self._mark(object_key(item)))
        self._slices.subscribe(self._slice_changed)
        self._changed.update(self._services.store)
        self._reconcile()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        if self._scheduled:
            self._scheduled.cancel()
        self._listeners.close()

    def address(self, ip: str, port: int, protocol: str = "TCP") -> Backend | None:
        """Find the address that listens for a Service's port; None if it has no endpoints."""
        return self._listeners.address(Front(ip, port, protocol))

    def targets(self, client: str) -> dict[Front, tuple[Sequence[Backend], bool]]:
        """Collect a client's endpoints of each ClusterIP's TCP ports, and whether it keeps to one of them."""
        return {
            front: (backends, balancer.affinity_seconds is not None)
            for fronts in self._fronts.values()
            for front, balancer in fronts.items()
            if front.protocol == "TCP" and not front.node and (backends := balancer.candidates(client))
        }

    def _slice_changed(self, _change: str, item: Object, before: Object | None) -> None:
        for version in (item, before):
            if version and owner(version)[1]:
                self._mark(owner(version))

    def _mark(self, key: Key) -> None:
        self._changed.add(key)
        if self._open and not self._scheduled:
            self._scheduled = self._loop.call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._scheduled = None
        changed, self._changed = self._changed, set()
        targets = {key: self._service_targets(key) for key in changed}
        for key in changed:  # all stops come first: an address may have moved from one Service to another
            before = self._fronts.pop(key, {})
            for front in before.keys() - targets[key].keys():
                self._listeners.stop(front)
            if targets[key]:
                self._fronts[key] = {front: before.get(front) or Balancer() for front in targets[key]}
        for key in changed:
            for front, balancer in self._fronts.get(key, {}).items():
                balancer.update(*targets[key][front])
                self._serve(key, front, balancer)

    def _serve(self, key: Key, front: Front, balancer: Balancer) -> None:
        if balancer.backends:
            chooser, about = self._chooser(front, balancer), f"Service {'/'.join(key)}"
            self._listeners.serve(front, chooser, namespace=key[0], about=about)
            self._listeners.forget(front, balancer.backends)
        else:
            self._listeners.stop(front)

    def _chooser(self, front: Front, balancer: Balancer) -> Choose:
        return lambda client: (
            backend for backend in balancer.choose(client) if self._permits(client, backend, front.protocol)
        )

    def _service_targets(self, key: Key) -> dict[Front, Target]:
        service = self._services.store.get(key)
        ips = cluster_ips(service) if service else []
        if service is None or not ips or service["spec"].get("type") == "ExternalName":
            return {}
        spec = service["spec"]
        slices = [(item, _numbers(item)) for item in slices_of(key, self._slices)]
        targets: dict[Front, Target] = {}
        for port in spec.get("ports") or ():
            protocol = port.get("protocol", "TCP")
            if protocol in LISTENERS:
                own = {(ip, port["port"]) for ip in ips}
                others = [
                    endpoint for endpoint in _endpoints(slices, port, protocol) if endpoint.backend not in own
                ]
                reached = [replace(endpoint, backend=self._reach(*endpoint.backend)) for endpoint in others]
                target = self._target(spec, reached, local=spec.get("internalTrafficPolicy") == LOCAL)
                targets |= {Front(ip, port["port"], protocol): target for ip in ips}
                for node in self._nodes if port.get("nodePort") else ():
                    front = Front(node.address, port["nodePort"], protocol, node.address)
                    targets[front] = self._on_node(spec, reached, node)
        return targets

    def _target(self, spec: Object, endpoints: Sequence[ServiceEndpoint], *, local: bool) -> Target:
        chooses = local or any(endpoint.for_nodes or endpoint.for_zones for endpoint in endpoints)

        def near(client: str) -> Collection[Backend]:
            place = next((node for node in self._nodes if node.has(client)), None)
            return {endpoint.backend for endpoint in nearest(endpoints, place, local=local)}

        return [endpoint.backend for endpoint in endpoints], _affinity(spec), near if chooses else None

    def _on_node(self, spec: Object, endpoints: Sequence[ServiceEndpoint], node: NodePlace) -> Target:
        if spec.get("externalTrafficPolicy") == LOCAL:
            endpoints = [endpoint for endpoint in endpoints if endpoint.node == node.name]
        return [endpoint.backend for endpoint in endpoints], _affinity(spec), None


def _affinity(spec: Object) -> float | None:
    """Read the seconds for which a client keeps its endpoint."""
    if spec.get("sessionAffinity") != "ClientIP":
        return None
    config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    return config.get("timeoutSeconds", AFFINITY_SECONDS)


def _numbers(item: Object) -> dict[tuple[str, str], list[int]]:
    """Map the port numbers of an EndpointSlice, by their name and protocol."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for entry in item.get("ports") or ():
        if entry.get("port"):
            numbers.setdefault((entry.get("name") or "", entry.get("protocol", "TCP")), []).append(
                entry["port"]
            )
    return numbers


def _endpoints(
    slices: Sequence[tuple[Object, Mapping[tuple[str, str], Sequence[int]]]], port: Object, protocol: str
) -> list[ServiceEndpoint]:
    """List the ready endpoints of one port; if there are none, those that still serve while terminating."""
    ready, terminating = [], []
    for item, by_name in slices:
        numbers = by_name.get((port.get("name") or "", protocol), ())
        for endpoint in item.get("endpoints") or ():
            conditions, hints = endpoint.get("conditions") or {}, endpoint.get("hints") or {}
            near = [
                tuple(hint["name"] for hint in hints.get(kind) or ()) for kind in ("forNodes", "forZones")
            ]
            endpoints = [
                ServiceEndpoint((address, number), endpoint.get("nodeName") or "", *near)
                for address in endpoint["addresses"][:1]
                for number in numbers
            ]
            if conditions.get("ready") is not False:
                ready += endpoints
            elif conditions.get("serving") and conditions.get("terminating"):
                terminating += endpoints
    return sorted({endpoint.backend: endpoint for endpoint in ready or terminating}.values())
