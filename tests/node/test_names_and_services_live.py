"""Names and Services follow the real API server and the real EndpointSlice controller."""

import asyncio
import contextlib

import pytest

from localkube.api_client import Informer
from localkube.network.dns_zone import Zone
from localkube.network.service_proxy import ServiceProxy

from ..patience import PATIENCE

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
LABELS = {"batch.kubernetes.io/job-name": "ddp"}
READY = [
    {"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")
]


class Live:
    """An API client, and what the kubelet would run on it."""

    def __init__(self, api):
        self.api = api
        self.services = Informer(api, "/api/v1/services")
        self.slices = Informer(api, "/apis/discovery.k8s.io/v1/endpointslices")
        self.pods = Informer(api, "/api/v1/pods")
        self.zone = Zone(services=self.services, slices=self.slices, pods=self.pods)
        self.proxy = ServiceProxy(
            services=self.services, slices=self.slices, place=lambda ip, port: ("127.0.0.1", 0)
        )
        self.created = []

    async def create(self, collection, name, spec, *, labels=None):
        metadata = {"name": name, "labels": labels or {}}
        self.created.append(f"{collection}/{name}")
        return await self.api.post(collection, {"metadata": metadata, "spec": spec})

    async def pod(self, rank):
        """Create the pod of a rank, as the Job controller does, bound to a node."""
        spec = {
            "nodeName": "names-node",
            "hostname": f"ddp-{rank}",
            "subdomain": "ddp",
            "containers": [{"name": "trainer", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        }
        await self.create(PODS, f"ddp-{rank}-x", spec, labels=LABELS)

    async def report(self, rank, address):
        """Report it as running and ready, as the kubelet does."""
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": READY}
        await self.api.patch(f"{PODS}/ddp-{rank}-x/status", {"status": status}, kind="merge")

    def addresses(self, name):
        return [record.value for record in self.zone.lookup(f"{name}.default.svc.cluster.local", "A").records]

    def hostnames_in_slices(self, service):
        items = [item for (_, name), item in self.slices.store.items() if name.startswith(f"{service}-")]
        return sorted(endpoint["hostname"] for item in items for endpoint in item["endpoints"] or ())

    async def until(self, condition):
        """Wait for a watch to make a condition true."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - what a watch feeds
                await asyncio.sleep(0.001)


@pytest.fixture
async def live(bare_control_plane):
    async with bare_control_plane.api() as api, contextlib.AsyncExitStack() as stack:
        live = Live(api)
        watches = [live.services, live.slices, live.pods]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        for watch in watches:
            await asyncio.wait_for(watch.synced.wait(), PATIENCE)
        await stack.enter_async_context(live.proxy)
        # The EndpointSlice controller passes over pods whose node does not exist.
        await live.create("/api/v1/nodes", "names-node", {})
        yield live
        for path in live.created:
            await api.delete(path, {"gracePeriodSeconds": 0})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_rank_is_found_as_soon_as_it_runs_and_again_by_its_endpoint_slice(live):
    headless = {"clusterIP": "None", "selector": LABELS, "ports": [{"name": "rendezvous", "port": 29500}]}
    await live.create(SERVICES, "ddp", headless)
    for rank in range(2):
        await live.pod(rank)
    assert live.addresses("ddp-0.ddp") == []
    for rank in range(2):
        await live.report(rank, f"10.244.{rank + 1}.2")
    await live.until(lambda: live.addresses("ddp-1.ddp") == ["10.244.2.2"])
    await live.until(lambda: live.hostnames_in_slices("ddp") == ["ddp-0", "ddp-1"])
    assert sorted(live.addresses("ddp")) == ["10.244.1.2", "10.244.2.2"]
    await live.api.delete(f"{PODS}/ddp-1-x", {"gracePeriodSeconds": 0})
    live.created.remove(f"{PODS}/ddp-1-x")
    await live.until(lambda: live.addresses("ddp") == ["10.244.1.2"])


async def test_a_service_is_served_when_its_first_pod_is_ready(live):
    spec = {"selector": LABELS, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    ip = (await live.create(SERVICES, "web", spec))["spec"]["clusterIP"]
    await live.until(lambda: live.addresses("web") == [ip])
    assert live.proxy.address(ip, 80) is None
    await live.pod(5)
    await live.report(5, "10.244.5.2")
    await live.until(lambda: live.proxy.address(ip, 80) is not None)
    await live.api.delete(f"{SERVICES}/web")
    live.created.remove(f"{SERVICES}/web")
    await live.until(lambda: live.proxy.address(ip, 80) is None)


async def test_the_api_server_s_own_service_has_a_name(live):
    assert live.addresses("kubernetes") == ["10.96.0.1"]
