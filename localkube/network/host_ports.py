"""Host ports: ports that a container publishes on the address of its node, relayed to its pod."""

from collections.abc import Callable, Iterator, Sequence

from localkube.api_client import Informer, object_key
from localkube.api_path import Object
from localkube.network.fair_shares import RelayLimits
from localkube.network.node_listeners import Front, Listeners, NodePlace, NodeSockets
from localkube.network.relay import LISTENERS, Backend, Choose, Permits, permit_all
from localkube.network.service_records import Key, has_ended

ANY_ADDRESS = "0.0.0.0"


class HostPorts:
    """Listens on the host ports of all pods that have an address; an async context manager.

    Args:
        permits: Decides whether a client may connect to a pod by a protocol.
        reach: Maps a pod's (ip, port) to the address to connect to.
        plain: In plain mode a node has no loopback of its own, so that every host port is on its address.
        limits: The shares of one client and of one namespace.
    """

    def __init__(
        self,
        nodes: Sequence[NodePlace],
        *,
        pods: Informer,
        sockets: NodeSockets,
        permits: Permits = permit_all,
        reach: Callable[[str, int], Backend] = lambda ip, port: (ip, port),
        plain: bool = False,
        limits: RelayLimits | None = None,
    ) -> None:
        self._nodes = {node.name: node.address for node in nodes}
        self._pods, self._permits, self._reach, self._plain = pods, permits, reach, plain
        self._listeners = Listeners(sockets, limits or RelayLimits())
        self._served: dict[Key, dict[Front, Backend]] = {}

    async def __aenter__(self) -> "HostPorts":
        self._pods.subscribe(self._changed)
        for pod in list(self._pods.store.values()):
            self._changed("ADDED", pod, None)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listeners.close()

    def _changed(self, change: str, pod: Object, _before: Object | None) -> None:
        key = object_key(pod)
        ports = {} if change == "DELETED" or has_ended(pod) else dict(self._host_ports(pod))
        before = self._served.get(key, {})
        for front in [front for front in before if ports.get(front) != before[front]]:
            self._listeners.stop(front)
        for front, backend in ports.items():
            chooser, about = self._chooser(front, backend), f"pod {'/'.join(key)}"
            self._listeners.serve(front, chooser, namespace=key[0], about=about)
        self._served.pop(key, None)
        if ports:
            self._served[key] = ports

    def _chooser(self, front: Front, backend: Backend) -> Choose:
        return lambda client: [backend] if self._permits(client, backend, front.protocol) else []

    def _host_ports(self, pod: Object) -> Iterator[tuple[Front, Backend]]:
        spec, address = pod["spec"], (pod.get("status") or {}).get("podIP")
        node = self._nodes.get(spec.get("nodeName", ""))
        if not address or not node or address == node:
            return
        for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
            for port in container.get("ports") or ():
                protocol = port.get("protocol") or "TCP"
                if port.get("hostPort") and protocol in LISTENERS:
                    host = node if self._plain else port.get("hostIP") or ANY_ADDRESS
                    backend = self._reach(address, port["containerPort"])
                    yield Front(host, port["hostPort"], protocol, node), backend
