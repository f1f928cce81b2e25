"""A node's sign of life: its lease every few seconds, its status now and then.

Kubernetes renews every ten seconds and calls a node NotReady after fifty. Here it is three and sixteen, so
that a lesson in which a node is switched off needs no coffee break; the grace is a flag of the controller
manager (``controlplane/components.py``).
"""

import asyncio
import logging

from localkube.api_client import Api, ApiError, Watch
from localkube.kubelet.nodes.node_pool import NodeSettings, is_ready, node_object, node_status, rfc3339

log = logging.getLogger(__name__)

# As the kubelet: four renewals in the time that a lease lasts.
LEASE_SECONDS, RENEW_SECONDS, STATUS_SECONDS = 12, 3, 300
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def register(api: Api, settings: NodeSettings, *, version: str) -> None:
    """Create the Node, or bring an existing one's labels and status up to date."""
    node = node_object(settings, version=version)
    try:
        await api.post("/api/v1/nodes", node)
    except ApiError as error:
        if error.status != 409:
            raise
        path = f"/api/v1/nodes/{settings.name}"
        await api.patch(path, {"metadata": {"labels": node["metadata"]["labels"]}})
        await api.patch(path + "/status", {"status": node["status"]})


async def keep_alive(api: Api, settings: NodeSettings, *, version: str, seen: Watch) -> None:
    """Renew the node's lease and its status, for ever.

    The status comes earlier for a node that is not Ready in ``seen``: after a machine has slept, the node
    controller has declared it silent, and only the status says otherwise.
    """
    beats = 0
    while True:
        try:
            await renew(api, settings.name, seconds=LEASE_SECONDS)
            silent = not is_ready(seen.store.get(("", settings.name), {}))
            if beats and (silent or beats % (STATUS_SECONDS // RENEW_SECONDS) == 0):
                status = {"status": node_status(settings, version=version)}
                await api.patch(f"/api/v1/nodes/{settings.name}/status", status)
            beats += 1
        except ApiError as error:
            log.warning("heartbeat of %s: %s", settings.name, error)
        await asyncio.sleep(RENEW_SECONDS)


async def renew(api: Api, node: str, *, seconds: int) -> None:
    """Renew the lease of ``node`` for so many seconds, and make it if there is none."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": rfc3339(micro=True)}
    try:
        await api.patch(f"{LEASES}/{node}", {"spec": spec}, kind="merge")
    except ApiError as error:
        if error.status != 404:
            raise
        await api.post(LEASES, {"metadata": {"name": node}, "spec": spec})
