"""The cluster's own objects that the kubelet keeps in the API: those of ``manifests/``.

The API server runs with ``--endpoint-reconciler-type=none``, because its own address is not the one that pods
reach; metrics-server is not a pod, so nothing else would register it.
"""

import asyncio
import base64
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from localkube.api_client import Api
from localkube.api_path import api_path
from localkube.errors import ApiError
from localkube.network.addresses import Addresses

METRICS_PORT = 4443
NOT_READY = (0, 403, 404, 429, 500, 503, 504)
CONFLICTS = (409, 422)  # a field has another manager; the existing object does not allow the change
RETRY_SECONDS, LISTENING_SECONDS = 0.2, 0.25
COLLECTIONS = {
    "APIService": "apiservices",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "DeviceClass": "deviceclasses",
    "EndpointSlice": "endpointslices",
    "Endpoints": "endpoints",
    "FlowSchema": "flowschemas",
    "Role": "roles",
    "ResourceSlice": "resourceslices",
    "RoleBinding": "rolebindings",
    "Service": "services",
}

log = logging.getLogger(__name__)


async def publish_identities(api: Api) -> None:
    """Grant the parts that serve all nodes their permissions. Safe to repeat."""
    await asyncio.gather(*(_apply(api, item) for item in manifest("identities")))


async def publish_gpus(api: Api, slices: Iterable[dict[str, Any]]) -> None:
    """Publish the GPUs of nodes and the classes that name them. Safe to repeat."""
    items = list(slices)
    await asyncio.gather(*(_apply(api, item) for item in [*items, *(manifest("gpus") if items else [])]))


async def publish_api_server(api: Api, *, address: str, port: int) -> None:
    """Point ``default/kubernetes`` at ``address``, once the API server is ready. Safe to repeat."""
    slice_of_service, endpoints = manifest("api-server")
    slice_of_service["endpoints"][0]["addresses"] = [address]
    slice_of_service["ports"][0]["port"] = port
    endpoints["subsets"] = [{"addresses": [{"ip": address}], "ports": slice_of_service["ports"]}]
    for item in (slice_of_service, endpoints):
        await _apply(api, item)


async def publish_metrics_server(
    api: Api, *, address: str, ca_file: Path, addresses: Addresses | None = None
) -> None:
    """Register metrics-server, and its APIService once it listens. Safe to repeat.

    Objects that an administrator has replaced, such as another metrics-server, are left unchanged.
    """
    *objects, slice_of_service, api_service = manifest("metrics-server")
    slice_of_service["endpoints"][0]["addresses"] = [address]
    api_service["spec"]["caBundle"] = base64.b64encode(ca_file.read_bytes()).decode()
    for item in (*objects, slice_of_service):
        await _apply(api, item, force=False)
    target = (addresses or Addresses()).reach(address, METRICS_PORT)
    while not await _listens(*target):  # noqa: ASYNC110 - the start of a listener cannot be watched
        await asyncio.sleep(LISTENING_SECONDS)
    await _apply(api, api_service, force=False)


def manifest(name: str) -> list[dict[str, Any]]:
    import yaml

    text = Path(__file__).parent.joinpath("manifests", f"{name}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


async def _apply(api: Api, item: dict[str, Any], *, force: bool = True) -> None:
    """Apply an object as the kubelet's own, once the API server and the object's namespace are ready.

    On a conflict the object is left unchanged: a kubelet that exits would serve no node.

    Args:
        force: Take over fields of other managers.
    """
    version, metadata = item["apiVersion"], item["metadata"]
    resource = f"{version}/{COLLECTIONS[item['kind']]}"
    path = api_path(resource, namespace=metadata.get("namespace"), name=metadata["name"])
    while True:
        try:
            forced = "&force=true" if force else ""
            await api.patch(f"{path}?fieldManager=trainyard{forced}", item, kind="apply")
            return
        except ApiError as error:
            if error.status in CONFLICTS:
                log.warning("%s has another manager, and is left unchanged: %s", path, error)
                return
            if error.status not in NOT_READY:
                raise
            log.debug("%s is not written yet: %s", path, error)
            await asyncio.sleep(RETRY_SECONDS)


async def _listens(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
