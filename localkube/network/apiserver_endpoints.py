"""Where the API server is, for those who ask the cluster: the endpoints of ``default/kubernetes``.

The API server would write its own address, but runs with ``--endpoint-reconciler-type=none``, as its own
view of its address is not the pods'. What is written is what its lease reconciler would have written: an
EndpointSlice, and the older Endpoints object beside it, marked not to be mirrored.
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
    """Make ``default/kubernetes`` lead to ``address``; return whether anything had to be written.

    Harmless to repeat: what is right already is left alone. An API server that is not ready is waited for.

    Raises:
        ApiError: The API server refused for a reason that does not pass.
    """
    while True:
        try:
            written = [
                await _ensure(api, collection, wanted) for collection, wanted in _objects(address, port)
            ]
            return any(written)
        except ApiError as error:
            if error.status not in NOT_READY:
                raise
            log.debug("the endpoints of the API server are not written yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def _objects(address: str, port: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the collection and the content of each object."""
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
    """Create an object, and before it the namespace if the API server has not come to that yet."""
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
    """Tell whether all of ``wanted`` is in ``found``, which may have more fields, but no longer lists."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_covers, found, wanted))
    return found == wanted
