"""The servers and controllers of the nodes: DNS, Services, endpoints, the kubelet's API, provisioning."""

import asyncio
import contextlib
from pathlib import Path
from typing import Protocol

from localkube.api_client import Api, Informer
from localkube.kubelet.config import KubeletConfig
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.nodes.node import KUBELET_PORT
from localkube.kubelet.resources import metrics
from localkube.kubelet.resources.metrics import StatsProvider
from localkube.kubelet.resources.metrics_api import publish_metrics_server
from localkube.kubelet.server import KubeletServer, NodeView
from localkube.kubelet.streaming.routes import Streams, StreamView
from localkube.kubelet.volumes.provisioner import Provisioner
from localkube.network.addresses import Addresses, ClusterNetwork
from localkube.network.apiserver_endpoints import publish_api_server
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone
from localkube.network.egress_proxy import EgressProxy
from localkube.network.service_proxy import ServiceProxy
from localkube.tasks import start_task


class View(NodeView, StreamView, Protocol):
    """What the kubelet's API needs to know; the kubelet answers."""


class NodeServices:
    """The kubelet's servers and controllers; an async context manager."""

    def __init__(
        self,
        api: Api,
        settings: KubeletConfig,
        *,
        pods: Informer,
        view: View,
        meter: StatsProvider,
        addresses: Addresses,
    ) -> None:
        self.logs = LogFiles(settings.log_limits)
        self.services = Informer(api, "/api/v1/services")
        self._slices = Informer(api, "/apis/discovery.k8s.io/v1/endpointslices")
        self._api, self._settings, self._pods, self._view = api, settings, pods, view
        self._meter = meter
        self._addresses = addresses
        self._tasks: list[asyncio.Task] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "NodeServices":
        site, settings = ClusterNetwork(), self._settings
        zone = Zone(services=self.services, slices=self._slices, pods=self._pods)
        upstreams = [(site.gateway, 53)] if settings.egress else []
        dns = await self._stack.enter_async_context(DnsServer(zone, upstreams=upstreams))
        reach = self._addresses.reach
        await dns.listen(*reach(site.address, 53))
        proxy = ServiceProxy(services=self.services, slices=self._slices, place=reach, reach=reach)
        await self._stack.enter_async_context(proxy)
        self._server = KubeletServer(
            self._view,
            files=self.logs,
            cert_file=settings.pki / "kubelet-serving.crt",
            key_file=settings.pki / "kubelet-serving.key",
            client_ca_file=settings.pki / "ca.crt",
            routes=[*metrics.routes(self._meter, self._addresses), *Streams(self._view).routes()],
        )
        await self._stack.enter_async_context(self._server)
        if settings.plain:
            egress = EgressProxy(Path(settings.plain.egress), self._addresses)
            await self._stack.enter_async_context(egress)
        provisioner = Provisioner(self._api, directory=settings.volumes)
        for work, name in (
            (self.services.run(), "watch services"),
            (self._slices.run(), "watch endpointslices"),
            (provisioner.run(), "provisioner"),
            (publish_api_server(self._api, address=site.address, port=6443), "endpoints of kubernetes"),
        ):
            self._tasks.append(start_task(work, name=name))
        if settings.metrics:
            known = publish_metrics_server(
                self._api, address=site.address, ca_file=settings.pki / "ca.crt", addresses=self._addresses
            )
            self._tasks.append(start_task(known, name="metrics-server's objects"))
        return self

    async def open(self) -> None:
        """Accept requests about pods, once they are known."""
        if not self._settings.plain:
            await self._server.listen("0.0.0.0", KUBELET_PORT)
            return
        # The machine's own network is not ours to listen on.
        for node in self._settings.nodes:
            await self._server.listen(*self._addresses.reach(node.address, KUBELET_PORT))

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()
