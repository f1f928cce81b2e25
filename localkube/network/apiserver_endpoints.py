"""The way of pods to the API server: the endpoints of ``default/kubernetes``.

The API server runs with ``--endpoint-reconciler-type=none``, because its own address is not the one that pods
reach. These are the objects of its lease reconciler: an EndpointSlice, and an Endpoints object that is not
mirrored.
"""

import asyncio
import logging
from typing import Any

from localkube.api_client import Api, ApiError

NAMESPACE = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NAME = "kubernetes"
NOT_READY = (0, 403, 429, 500, 503, 504)
RETRY_SECONDS = 0.2

log = logging.getLogger(__name__)


async def publish_api_server(api: Api, *, address: str, port: int) -> bool:
    """Make ``default/kubernetes`` lead to ``address``; return whether anything was written.

    Safe to repeat; waits until the API server is ready.
    """
    while True:
        try:
            written = [await _ensure(api, collection, item) for collection, item in _objects(address, port)]
            return any(written)
        except ApiError as error:
            if error.status not in NOT_READY:
                raise
            log.debug("the endpoints of the API server are not written yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def _objects(address: str, port: int) -> list[tuple[str, dict[str, Any]]]:
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    whole = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}],
    }
    return [(SLICES, piece), (f"{NAMESPACE}/endpoints", whole)]


async def _ensure(api: Api, collection: str, wanted: dict[str, Any]) -> bool:
    try:
        found = await api.get(f"{collection}/{NAME}")
    except ApiError as error:
        if error.status != 404:
            raise
        await _create(api, collection, wanted)
        return True
    if _covers(found, wanted):
        return False
    await api.patch(f"{collection}/{NAME}", wanted, kind="merge")
    return True


async def _create(api: Api, collection: str, wanted: dict[str, Any]) -> None:
    """Create an object, and its namespace if the API server has not created it yet."""
    try:
        await api.post(collection, wanted)
    except ApiError as error:
        if error.status != 404:
            raise
        try:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
            await api.post("/api/v1/namespaces", namespace)
        except ApiError as conflict:
            if conflict.status != 409:
                raise
        await api.post(collection, wanted)


def _covers(found: Any, wanted: Any) -> bool:
    """Check whether ``found`` has all of ``wanted``; it may have more fields, but no longer lists."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_covers, found, wanted))
    return found == wanted
