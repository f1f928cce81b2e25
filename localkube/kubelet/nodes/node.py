"""Virtual nodes: their Node objects, leases, pod addresses and GPUs.

Kubernetes renews a lease every 10 s and calls a node NotReady after 50 s. Here it is 3 s and 16 s
(``controlplane/components.py``), so that a lesson that stops a node does not have to wait.
"""

import asyncio
import logging
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from localkube.api_client import Api, ApiError, Informer
from localkube.kubelet.resources.allocation import Allocations
from localkube.runtime.client import RuntimeCallError

KUBELET_PORT = 10250
MAX_PODS = 250
# With it the API server passes the WebSockets of exec, attach and port-forward on as they are.
DECLARED_FEATURE = "ExtendWebSocketsToKubelet"


@dataclass(frozen=True)
class NodeSettings:
    """One node: ``cpus`` in cores, ``memory`` in bytes.

    ``external_address`` is its address outside the cluster's network, if it has one.
    """

    name: str
    index: int
    cpus: float
    memory: int
    storage: int
    gpus: int = 0
    gpu_devices: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    external_address: str = ""

    @property
    def address(self) -> str:
        return f"10.244.254.{self.index + 1}"

    @property
    def first_core(self) -> int:
        """Where its cores begin among the machine's, so that nodes differ."""
        return int(self.index * self.cpus)

    def allocatable(self) -> dict[str, str]:
        """The node's allocatable resources."""
        quantities = {
            "cpu": f"{round(self.cpus * 1000)}m",
            "memory": f"{self.memory // 1024}Ki",
            "ephemeral-storage": f"{self.storage // 1024}Ki",
            "pods": str(MAX_PODS),
        }
        return quantities | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {})


class NodePool:
    """The pod addresses and GPU devices of a node."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self._addresses: dict[str, str] = {}
        self._devices: dict[str, list[str]] = {}
        self._next = 2
        self.allocations = Allocations(settings.allocatable())

    def address(self, uid: str, *, wanted: str | None = None) -> str:
        """Allocate the pod's address; ``wanted`` is its former one.

        Raises:
            RuntimeCallError: All addresses of the node are taken.
        """
        if uid not in self._addresses:
            taken = set(self._addresses.values())
            prefix = f"10.244.{self.settings.index + 1}."
            # In turn, because the kernel takes a moment to free the interface of a pod that has just gone.
            order = [*range(self._next, 255), *range(2, self._next)]
            free = next((prefix + str(last) for last in order if prefix + str(last) not in taken), None)
            if not wanted and not free:
                raise RuntimeCallError(
                    "sandbox", f"no IP addresses available in range set: {prefix}2-{prefix}254"
                )
            self._addresses[uid] = wanted or free
            self._next = max(2, int(self._addresses[uid].rsplit(".", 1)[1]) % 254 + 1)
        return self._addresses[uid]

    def devices(self, uid: str, container: str, count: int) -> list[str] | None:
        """Allocate a container's real GPUs; None when the node only declares GPUs."""
        if not self.settings.gpu_devices:
            return None
        key = f"{uid}/{container}"
        if key not in self._devices:
            taken = {device for devices in self._devices.values() for device in devices}
            free = [device for device in self.settings.gpu_devices if device not in taken]
            self._devices[key] = free[:count]
        return self._devices[key]

    def release(self, uid: str) -> None:
        self.allocations.release(uid)
        self._addresses.pop(uid, None)
        for key in [key for key in self._devices if key.startswith(uid + "/")]:
            del self._devices[key]


def node_object(settings: NodeSettings, *, version: str, pressure: Collection[str] = ()) -> dict[str, Any]:
    """The Node to register."""
    labels = {
        "kubernetes.io/hostname": settings.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(
            platform.machine(), platform.machine()
        ),
        "node.kubernetes.io/instance-type": "local",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": f"local-{'abc'[settings.index % 3]}",
        **settings.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.name, "labels": labels},
        "spec": {
            "podCIDR": f"10.244.{settings.index + 1}.0/24",
            "providerID": f"trainyard://{settings.name}",
        },
        "status": node_status(settings, version=version, pressure=pressure),
    }


def node_status(
    settings: NodeSettings,
    *,
    version: str,
    pressure: Collection[str] = (),
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute the status of a node.

    Args:
        pressure: The conditions of pressure that hold.
        before: The node as it is known; transition times are kept from there.
    """
    now = rfc3339()
    conditions = [
        _condition(kind, "True" if kind in pressure else "False", *PRESSURE[kind][kind in pressure], now)
        for kind in PRESSURE
    ]
    conditions.append(
        _condition("Ready", "True", "KubeletReady", "the kubelet runs containers as processes", now)
    )
    known = {each["type"]: each for each in ((before or {}).get("status") or {}).get("conditions") or []}
    for each in conditions:
        last = known.get(each["type"], {})
        if last.get("status") == each["status"]:
            each["lastTransitionTime"] = last["lastTransitionTime"]
    external = [{"type": "ExternalIP", "address": settings.external_address}]
    return {
        "addresses": [
            {"type": "InternalIP", "address": settings.address},
            *(external if settings.external_address else []),
            {"type": "Hostname", "address": settings.name},
        ],
        "capacity": settings.allocatable(),
        "allocatable": settings.allocatable(),
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "declaredFeatures": [DECLARED_FEATURE],
        "nodeInfo": {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(
                platform.machine(), platform.machine()
            ),
            "bootID": _read("/proc/sys/kernel/random/boot_id"),
            "containerRuntimeVersion": "trainyard://0.1.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": settings.name,
            "operatingSystem": "linux",
            "osImage": "processes of " + platform.node(),
            "systemUUID": settings.name,
        },
    }


# Reason and message without pressure, and with it, as a kubelet's.
PRESSURE = {
    "MemoryPressure": (
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
    ),
    "DiskPressure": (
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    ),
    "PIDPressure": (
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    ),
}


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def is_ready(item: Mapping[str, Any]) -> bool:
    """Check the Ready condition of a node or pod."""
    conditions = item.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def rfc3339(*, micro: bool = False) -> str:
    """Format the present time as the API does; ``micro`` for MicroTime fields."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


log = logging.getLogger(__name__)

# As the kubelet: four renewals in the time that a lease lasts.
LEASE_SECONDS, RENEW_SECONDS, STATUS_SECONDS = 12, 3, 300
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def register_node(
    api: Api, settings: NodeSettings, *, version: str, pressure: Collection[str] = ()
) -> None:
    """Create the Node, or update an existing one's labels and status."""
    node = node_object(settings, version=version, pressure=pressure)
    try:
        await api.post("/api/v1/nodes", node)
    except ApiError as error:
        if error.status != 409:
            raise
        path = f"/api/v1/nodes/{settings.name}"
        known = await api.patch(path, {"metadata": {"labels": node["metadata"]["labels"]}})
        status = node_status(settings, version=version, pressure=pressure, before=known)
        await api.patch(path + "/status", {"status": status})


async def keep_alive(
    api: Api,
    settings: NodeSettings,
    *,
    version: str,
    seen: Informer,
    pressure: Callable[[], Collection[str]] = tuple,
    changed: Callable[[str], None] = lambda reason: None,
) -> None:
    """Renew the node's lease and status, for ever.

    The status is sent early for a node that is not Ready: after the machine has slept, the node controller
    calls the node unreachable until its next status.

    Args:
        seen: The informer of nodes.
        pressure: Returns the conditions of pressure that hold; each change is reported with the next beat.
        changed: Called with the reason of an Event for each of them that begins or ends.
    """
    beats, told = 0, set(pressure())
    while True:
        try:
            await renew(api, settings.name, seconds=LEASE_SECONDS)
            node, now = seen.store.get(("", settings.name), {}), set(pressure())
            due = not is_ready(node) or beats % (STATUS_SECONDS // RENEW_SECONDS) == 0
            if now != told or (beats and due):
                status = node_status(settings, version=version, pressure=now, before=node)
                await api.patch(f"/api/v1/nodes/{settings.name}/status", {"status": status})
            for kind in now ^ told:
                changed(PRESSURE[kind][kind in now][0].replace("Kubelet", "Node", 1))
            told = now
            beats += 1
        except ApiError as error:
            log.warning("heartbeat of %s: %s", settings.name, error)
        await asyncio.sleep(RENEW_SECONDS)


async def renew(api: Api, node: str, *, seconds: int) -> None:
    """Renew the lease of ``node`` for ``seconds``, or create it."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": rfc3339(micro=True)}
    try:
        await api.patch(f"{LEASES}/{node}", {"spec": spec}, kind="merge")
    except ApiError as error:
        if error.status != 404:
            raise
        await api.post(LEASES, {"metadata": {"name": node}, "spec": spec})
