"""Register metrics-server in the cluster: RBAC, Service, endpoint and APIService.

It runs beside the API server and not in a pod, so its Service has no selector. The APIService is created once
the server listens: an APIService without a server blocks the deletion of namespaces.
"""

import asyncio
import base64
import contextlib
import logging
from pathlib import Path
from typing import Any

from localkube.api_client import Api, ApiError
from localkube.kubelet.resources.stats import READER
from localkube.network.addresses import Addresses, NamespaceAddresses

PORT = 4443
NAME, NAMESPACE = "metrics-server", "kube-system"
NOT_READY = (0, 403, 429, 500, 503, 504)
RETRY_SECONDS, LISTENING_SECONDS = 0.5, 0.25
RBAC = "/apis/rbac.authorization.k8s.io/v1"
APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
SUBJECT = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": READER}

log = logging.getLogger(__name__)


async def publish_metrics_server(
    api: Api, *, address: str, ca_file: Path, addresses: Addresses | None = None
) -> None:
    """Apply metrics-server's objects. Safe to repeat.

    Raises:
        ApiError: The API server refused for a reason that does not pass.
    """
    for collection, item in _objects(address):
        await _ensure(api, collection, item)
    while not await _listens(*(addresses or NamespaceAddresses()).reach(address, PORT)):  # noqa: ASYNC110 - a listener's birth cannot be watched
        await asyncio.sleep(LISTENING_SECONDS)
    await _ensure(api, APISERVICES, _api_service(ca_file))


async def _ensure(api: Api, collection: str, wanted: dict[str, Any]) -> None:
    path = f"{collection}/{wanted['metadata']['name']}"
    while True:
        try:
            await api.patch(f"{path}?fieldManager=trainyard&force=true", wanted, kind="apply")
            return
        except ApiError as error:
            if error.status not in (*NOT_READY, 404):
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


def _objects(address: str) -> list[tuple[str, dict[str, Any]]]:
    """Collection and content of each object but the APIService."""
    own = f"{RBAC}/namespaces/{NAMESPACE}"
    return [
        (f"{RBAC}/clusterroles", _reader_role()),
        (f"{RBAC}/clusterroles", _own_role()),
        (f"{RBAC}/clusterrolebindings", _binding("ClusterRoleBinding", f"system:{NAME}", f"system:{NAME}")),
        (
            f"{RBAC}/clusterrolebindings",
            _binding("ClusterRoleBinding", f"{NAME}:system:auth-delegator", "system:auth-delegator"),
        ),
        (
            f"{own}/rolebindings",
            _binding(
                "RoleBinding", f"{NAME}-auth-reader", "extension-apiserver-authentication-reader", "Role"
            ),
        ),
        (f"/api/v1/namespaces/{NAMESPACE}/services", _service()),
        (f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", _slice(address)),
    ]


def _reader_role() -> dict[str, Any]:
    """Let those who may view a namespace read its metrics."""
    aggregated = {
        f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("view", "edit", "admin")
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:aggregated-metrics-reader", "labels": aggregated},
        "rules": [
            {
                "apiGroups": ["metrics.k8s.io"],
                "resources": ["pods", "nodes"],
                "verbs": ["get", "list", "watch"],
            }
        ],
    }


def _own_role() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"system:{NAME}"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
        ],
    }


def _binding(kind: str, name: str, role: str, role_kind: str = "ClusterRole") -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": [SUBJECT],
    }


def _service() -> dict[str, Any]:
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": PORT, "appProtocol": "https"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"ports": [port]},
    }


def _slice(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": PORT, "protocol": "TCP", "appProtocol": "https"}],
    }


def _api_service(ca_file: Path) -> dict[str, Any]:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "service": {"name": NAME, "namespace": NAMESPACE, "port": 443},
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "caBundle": base64.b64encode(ca_file.read_bytes()).decode(),
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
