"""The servers and controllers of the nodes: DNS, Services, endpoints, the kubelet's API, provisioning."""

import asyncio
import contextlib
from pathlib import Path

from localkube.api_client import Informer
from localkube.controlplane.etcd_maintenance import maintain_etcd
from localkube.kubelet.cluster_objects import publish_api_server, publish_metrics_server
from localkube.kubelet.config import KubeletConfig
from localkube.kubelet.http_server import KubeletServer
from localkube.kubelet.nodes.node import KUBELET_PORT
from localkube.kubelet.pods.component_pods import ComponentPods
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.resources.stats import StatsProvider, stats_routes
from localkube.kubelet.streaming.routes import Streams
from localkube.kubelet.volumes.provisioner import Provisioner
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.network.egress_proxy import EgressProxy
from localkube.network.fair_shares import RelayLimits
from localkube.network.host_ports import HostPorts
from localkube.network.node_listeners import NodePlace, NodeSockets
from localkube.network.rate_limits import limit_rates
from localkube.network.service_proxy import ServiceProxy
from localkube.tasks import start_task


class NodeServices:
    """The kubelet's servers and controllers; an async context manager.

    Args:
        config: The kubelet's.
        runtime: Its parts.
        bound: The informer of bound pods.
        pods: Knows all of them, and answers the kubelet's API.
        stats: The same for metrics.
        components: The same for the logs of the cluster's own programs.
    """

    def __init__(
        self,
        config: KubeletConfig,
        *,
        runtime: Runtime,
        bound: Informer,
        pods: PodManager,
        stats: StatsProvider,
        components: ComponentPods,
    ) -> None:
        self._config, self._runtime, self._bound, self._pods = config, runtime, bound, pods
        self._sockets = NodeSockets(runtime.client, runtime.addresses)
        self._server = KubeletServer(
            pods,
            files=runtime.logs,
            component_log=components.log,
            cert_file=config.pki / "kubelet-serving.crt",
            key_file=config.pki / "kubelet-serving.key",
            client_ca_file=config.pki / "ca.crt",
            routes=[*stats_routes(stats, runtime.addresses), *Streams(pods).routes()],
        )
        self._tasks: list[asyncio.Task] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "NodeServices":
        config, runtime, network = self._config, self._runtime, self._runtime.network
        api, services, reach = runtime.api, runtime.services, runtime.addresses.reach
        slices = Informer(api, "/apis/discovery.k8s.io/v1/endpointslices")
        zone = Zone(services=services, slices=slices, pods=self._bound)
        upstreams = [(network.gateway, 53)] if config.egress else []
        dns = await self._stack.enter_async_context(
            DnsServer(zone, upstreams=upstreams, namespaces=runtime.namespaces)
        )
        await dns.listen(*reach(network.address, 53))
        places = [NodePlace(node.name, node.address, node.pods, node.zone) for node in config.nodes]
        limits = RelayLimits.of_process(runtime.namespaces)
        proxy = ServiceProxy(
            services=services,
            slices=slices,
            nodes=places,
            sockets=self._sockets,
            permits=runtime.policies.permits,
            place=reach,
            reach=reach,
            limits=limits,
        )
        await self._stack.enter_async_context(proxy)
        ports = HostPorts(
            places,
            pods=self._bound,
            sockets=self._sockets,
            permits=runtime.policies.permits,
            reach=reach,
            plain=bool(config.plain),
            limits=limits,
        )
        await self._stack.enter_async_context(ports)
        await self._stack.enter_async_context(self._server)
        if config.plain:
            egress = EgressProxy(Path(config.plain.egress), runtime.addresses)
            await self._stack.enter_async_context(egress)
        self._go(api.follow_renewals(), "renewals of the kubelet's certificate")
        self._go(self._server.follow_renewals(), "renewals of the server's certificate")
        self._go(services.run(), "watch services")
        self._go(slices.run(), "watch endpointslices")
        policies = runtime.policies.run(
            pods=self._pods.known, targets=proxy.targets, follow=(self._bound, services, slices)
        )
        self._go(policies, "network policies")
        self._go(Provisioner(api, directory=config.volumes).run(), "provisioner")
        self._go(maintain_etcd(config.etcd, pki=config.pki), "etcd's maintenance")
        if not config.plain:
            limit_rates(port=6443)
        self._go(publish_api_server(api, address=network.address, port=6443), "endpoints of kubernetes")
        if config.metrics:
            registered = publish_metrics_server(
                api, address=network.address, ca_file=config.pki / "ca.crt", addresses=runtime.addresses
            )
            self._go(registered, "metrics-server's objects")
        return self

    async def open(self) -> None:
        """Accept requests about pods, once they are known."""
        if not self._config.plain:
            for node in self._config.nodes:
                bound = await self._sockets.bind(node.address, "0.0.0.0", KUBELET_PORT, "TCP")
                await self._server.listen_on(bound)
            return
        # The machine's own network is not ours to listen on.
        for node in self._config.nodes:
            await self._server.listen(*self._runtime.addresses.reach(node.address, KUBELET_PORT))

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    def _go(self, work, name: str) -> None:
        self._tasks.append(start_task(work, name=name, critical=True))
