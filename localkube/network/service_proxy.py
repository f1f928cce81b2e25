"""ClusterIP Services by a user-space proxy: nftables and IPVS need programs or rights that a laptop may lack.

The whole Service range is local to the network namespace, so an address only needs a listener; one without
endpoints refuses connections.

Limits: endpoints see the proxy's address; a connection whose endpoints all refuse is accepted and reset;
connections through a Service end with the kubelet; NodePort, LoadBalancer, external IPs and SCTP are not
supported; traffic policies make no difference. Headless and ExternalName Services are DNS only.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from localkube.api_client import Informer
from localkube.network.relay import Backend, TcpListener, UdpListener
from localkube.network.service_records import Key, Object, cluster_ips, owner, slices_of

log = logging.getLogger(__name__)

Front = tuple[str, int, str]
LISTENERS = {"TCP": TcpListener, "UDP": UdpListener}
AFFINITY_SECONDS = 10800
RETRY_SECONDS = 1.0


class Balancer:
    """The ready endpoints of one Service port, round robin or with client affinity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.backends: tuple[Backend, ...] = ()
        self.affinity_seconds: float | None = None
        self._clock = clock
        self._next = 0
        self._clients: dict[str, tuple[Backend, float]] = {}

    def update(self, backends: Sequence[Backend], affinity_seconds: float | None) -> None:
        """Replace the endpoints; clients of those that remain keep them."""
        self.backends = tuple(backends)
        self.affinity_seconds = affinity_seconds
        self._clients = {
            client: entry
            for client, entry in self._clients.items()
            if affinity_seconds is not None and entry[0] in self.backends
        }

    def choose(self, client: str) -> Iterator[Backend]:
        """Yield the endpoints to try for a client, each once.

        With affinity, the last one taken from the iterator becomes the client's.
        """
        backends, known = self.backends, self._clients.get(client)
        first = self._next
        if known and known[1] > self._clock():
            first = backends.index(known[0])
        else:
            self._next += 1
        for number in range(len(backends)):
            backend = backends[(first + number) % len(backends)]
            if self.affinity_seconds is not None:
                self._clients[client] = (backend, self._clock() + self.affinity_seconds)
            yield backend


class ServiceProxy:
    """Listens on every ClusterIP that has endpoints; an async context manager.

    Established connections survive changes of their Service. In plain mode ``place`` maps a Service's (ip,
    port) to the address to listen on, and ``reach`` an endpoint's to the one to connect to.
    """

    def __init__(
        self,
        *,
        services: Informer,
        slices: Informer,
        place: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
        reach: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
    ) -> None:
        self._services, self._slices = services, slices
        self._place, self._reach = place, reach
        self._fronts: dict[Key, dict[Front, Balancer]] = {}
        self._listeners: dict[Front, TcpListener | UdpListener] = {}
        self._changed: set[Key] = set()
        self._scheduled: asyncio.Handle | None = None
        self._failed: set[Front] = set()
        self._open = False

    async def __aenter__(self) -> "ServiceProxy":
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._services.subscribe(lambda _change, item, _before: self._mark(_key(item)))
        self._slices.subscribe(self._slice_changed)
        self._changed.update(self._services.store)
        self._reconcile()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        if self._scheduled:
            self._scheduled.cancel()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def address(self, ip: str, port: int, protocol: str = "TCP") -> Backend | None:
        """The address that listens for a Service's port; None if it has no endpoints."""
        listener = self._listeners.get((ip, port, protocol))
        return listener and listener.address

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
        wanted = {key: self._wanted(key) for key in changed}
        for key in changed:  # all stops come first: an address may have gone from one Service to another
            before = self._fronts.pop(key, {})
            for front in before.keys() - wanted[key].keys():
                self._stop(front)
            if wanted[key]:
                self._fronts[key] = {front: before.get(front) or Balancer() for front in wanted[key]}
        for key in changed:
            for front, balancer in self._fronts.get(key, {}).items():
                balancer.update(*wanted[key][front])
                self._serve(key, front, balancer)

    def _serve(self, key: Key, front: Front, balancer: Balancer) -> None:
        listener = self._listeners.get(front)
        if not balancer.backends:
            self._stop(front)
        elif isinstance(listener, UdpListener):
            listener.forget(balancer.backends)
        elif listener is None:
            ip, port, protocol = front
            try:
                self._listeners[front] = LISTENERS[protocol](self._place(ip, port), balancer.choose)
                self._failed.discard(front)
            except OSError as error:
                level = logging.DEBUG if front in self._failed else logging.WARNING
                log.log(level, "Service %s/%s: cannot listen on %s:%d: %s", *key, ip, port, error.strerror)
                self._failed.add(front)
                self._loop.call_later(RETRY_SECONDS, self._mark, key)

    def _stop(self, front: Front) -> None:
        listener = self._listeners.pop(front, None)
        if listener:
            listener.close()

    def _wanted(self, key: Key) -> dict[Front, tuple[list[Backend], float | None]]:
        """The endpoints and affinity of each address of a Service."""
        service = self._services.store.get(key)
        ips = cluster_ips(service) if service else []
        if not ips or service["spec"].get("type") == "ExternalName":
            return {}
        spec = service["spec"]
        seconds = None
        if spec.get("sessionAffinity") == "ClientIP":
            config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
            seconds = config.get("timeoutSeconds", AFFINITY_SECONDS)
        slices = slices_of(key, self._slices)
        wanted = {}
        for port in spec.get("ports") or ():
            protocol = port.get("protocol", "TCP")
            if protocol in LISTENERS:
                own = {(ip, port["port"]) for ip in ips}
                found = [backend for backend in _backends(slices, port, protocol) if backend not in own]
                backends = [self._reach(*backend) for backend in found]
                wanted |= {(ip, port["port"], protocol): (backends, seconds) for ip in ips}
        return wanted


def _backends(slices: Sequence[Object], port: Object, protocol: str) -> list[Backend]:
    """The ready endpoints of one port; if there are none, those that still serve while terminating."""
    ready, leaving = [], []
    for item in slices:
        numbers = [
            entry["port"]
            for entry in item.get("ports") or ()
            if (entry.get("name") or "") == (port.get("name") or "")
            and entry.get("protocol", "TCP") == protocol
            and entry.get("port")
        ]
        for endpoint in item.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            found = [(address, number) for address in endpoint["addresses"][:1] for number in numbers]
            if conditions.get("ready") is not False:
                ready += found
            elif conditions.get("serving") and conditions.get("terminating"):
                leaving += found
    return sorted(set(ready or leaving))


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
