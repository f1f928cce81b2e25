"""What a cluster has beside the node: names of Services, volumes, the endpoints of the API server, metrics.

They are the local cluster's own; a real node is the kubelet's side alone.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from localkube.api_client import Informer
from localkube.kubelet.cluster_objects import publish_api_server, publish_metrics_server
from localkube.kubelet.volumes.provisioner import Provisioner
from localkube.network.dns import DnsServer
from localkube.network.dns_zone import Zone

from ..node.bare_control_plane import BareControlPlane
from .node import ADDRESS, LISTEN


@contextlib.contextmanager
def running(plane: BareControlPlane, *, volumes: Path, metrics: bool = True) -> Iterator[None]:
    """Run them in a thread; the directories of PersistentVolumes are in ``volumes``."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(_serve(plane, volumes, metrics))
    thread = threading.Thread(target=_run, args=(loop, task), name="services")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)


async def _serve(plane: BareControlPlane, volumes: Path, metrics: bool) -> None:
    async with plane.api() as api:
        services, slices, pods = (
            Informer(api, path)
            for path in ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/pods")
        )
        zone = Zone(services=services, slices=slices, pods=pods)
        async with DnsServer(zone) as dns, asyncio.TaskGroup() as group:
            await dns.listen(ADDRESS, 53)
            for informer in (services, slices, pods):
                group.create_task(informer.run())
            group.create_task(Provisioner(api, directory=volumes).run())
            group.create_task(publish_api_server(api, address=ADDRESS, port=LISTEN.api_port))
            if metrics:
                group.create_task(publish_metrics_server(api, address=ADDRESS, ca_file=plane.ca))
