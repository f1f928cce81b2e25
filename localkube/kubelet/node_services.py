"""The servers and controllers of the nodes: DNS, Services, endpoints, the kubelet's API, provisioning."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from localkube.api_client import Informer
from localkube.api_path import api_path
from localkube.controlplane.etcd_maintenance import maintain_etcd
from localkube.kubelet.api_clients import ApiClients
from localkube.kubelet.cluster_objects import publish_api_server, publish_metrics_server
from localkube.kubelet.http_server.server import KubeletServer
from localkube.kubelet.kubelet_config import KubeletConfig
from localkube.kubelet.nodes.node import KUBELET_PORT
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.pods.sandboxes import Sandboxes
from localkube.kubelet.volumes.provisioner import Provisioner
from localkube.network.addresses import NETWORK, Addresses
from localkube.network.connection_limit import ConnectionLimit
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.network.egress_proxy import EgressProxy
from localkube.network.fair_shares import RelayLimits
from localkube.network.host_ports import HostPorts
from localkube.network.node_listeners import NodePlace, NodeSockets
from localkube.network.rate_limits import close_to_pods, limit_rates
from localkube.network.service_proxy import ServiceProxy
from localkube.network.service_records import limit_ports
from localkube.tasks import start_task

API_PORT, METRICS_PORT = 6443, 4443


class NodeServices:
    """The kubelet's servers and controllers; an async context manager."""

    def __init__(
        self,
        config: KubeletConfig,
        *,
        clients: ApiClients,
        services: Informer,
        pod_informer: Informer,
        sandboxes: Sandboxes,
        pods: PodManager,
        server: KubeletServer,
    ) -> None:
        self._config, self._clients = config, clients
        self._services, self._pod_informer = services, pod_informer
        self._sandboxes, self._pods, self._server = sandboxes, pods, server
        self._sockets = NodeSockets(sandboxes.client, sandboxes.addresses)
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "NodeServices":
        config, clients, services = self._config, self._clients, self._services
        addresses, namespaces = self._sandboxes.addresses, self._sandboxes.namespaces
        policies, reach = self._sandboxes.policies, addresses.reach
        path = api_path("discovery.k8s.io/v1/endpointslices")
        slices = Informer(clients.informers, path, trim=limit_ports)
        zone = Zone(services=services, slices=slices, pods=self._pod_informer)
        upstreams = [(NETWORK.gateway, 53)] if config.egress else []
        dns = await self._stack.enter_async_context(
            DnsServer(zone, upstreams=upstreams, namespaces=namespaces)
        )
        await dns.listen(*reach(NETWORK.address, 53))
        places = [NodePlace(node.name, node.address, node.pods, node.zone) for node in config.nodes]
        limits = RelayLimits.of_process(namespaces)
        proxy = ServiceProxy(
            services=services,
            slices=slices,
            nodes=places,
            sockets=self._sockets,
            permits=policies.permits,
            place=reach,
            reach=reach,
            limits=limits,
        )
        await self._stack.enter_async_context(proxy)
        ports = HostPorts(
            places,
            pods=self._pod_informer,
            sockets=self._sockets,
            permits=policies.permits,
            reach=reach,
            plain=bool(config.plain),
            limits=limits,
        )
        await self._stack.enter_async_context(ports)
        await self._stack.enter_async_context(self._server)
        if config.plain:
            egress = EgressProxy(Path(config.plain.egress), addresses)
            await self._stack.enter_async_context(egress)
        self._start(clients.follow_renewals(), "renewals of the kubelet's certificates")
        self._start(self._server.follow_renewals(), "renewals of the server's certificate")
        self._start(services.run(), "watch services")
        self._start(slices.run(), "watch endpointslices")
        follow = (self._pod_informer, services, slices)
        enforced = policies.run(pods=self._pods.known, targets=proxy.targets, follow=follow)
        self._start(enforced, "network policies")
        self._start(Provisioner(clients.provisioner, directory=config.volumes).run(), "provisioner")
        self._start(maintain_etcd(config.etcd), "etcd's maintenance")
        if not config.plain:
            limit_rates(port=API_PORT, closed=METRICS_PORT)
            limit = ConnectionLimit(port=API_PORT, network=NETWORK.pods)
            self._start(limit.run(), "connections to the API server")
        self._publish(addresses)
        return self

    def _publish(self, addresses: Addresses) -> None:
        """Write the cluster's own objects, as an administrator."""
        config, admin = self._config, self._clients.admin
        endpoints = publish_api_server(admin, address=NETWORK.address, port=API_PORT)
        self._start(endpoints, "endpoints of kubernetes")
        if config.metrics:
            authority = config.pki / "ca.crt"
            registered = publish_metrics_server(
                admin, address=NETWORK.address, ca_file=authority, addresses=addresses
            )
            self._start(registered, "metrics-server's objects")

    async def open(self) -> None:
        """Accept requests about pods, once the pods are known."""
        if not self._config.plain:
            for node in self._config.nodes:
                with await self._sockets.netfilter(node.address) as kernel:
                    close_to_pods(kernel, port=KUBELET_PORT, client=NETWORK.address)
                sock = await self._sockets.bind(node.address, "0.0.0.0", KUBELET_PORT, "TCP")
                self._server.listen_on(sock)
            return
        # In plain mode 0.0.0.0 would be the machine's own network.
        for node in self._config.nodes:
            await self._server.listen(*self._sandboxes.addresses.reach(node.address, KUBELET_PORT))

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    def _start(self, work: Coroutine[Any, Any, object], name: str) -> None:
        self._tasks.append(start_task(work, name=name, critical=True))
