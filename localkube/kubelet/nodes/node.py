"""Virtual nodes: their Node objects, leases, pod addresses and GPUs.

Kubernetes renews a lease every 10 s and calls a node NotReady after 50 s. Here it is 5 s and 16 s
(``controlplane/components.py``), so that a lesson that stops a node does not have to wait.
"""

import asyncio
import contextlib
import logging
import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.api_path import api_path
from localkube.errors import ApiError
from localkube.kubelet.events import rfc3339
from localkube.kubelet.nodes.runtime_class import HANDLERS
from localkube.kubelet.plugins.device_manager import DeviceManager
from localkube.kubelet.plugins.gpu_driver import GpuDriver
from localkube.kubelet.plugins.resource_claims import ClaimManager
from localkube.kubelet.resources.allocation import Allocations
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.status.conditions import is_ready
from localkube.kubelet.volumes.node_directory import NodeDirectory
from localkube.paths import target
from localkube.runtime.client import RuntimeCallError

HANDLER_FEATURES = {"recursiveReadOnlyMounts": True, "userNamespaces": True}
ANNOTATIONS = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
KUBELET_PORT = 10250
ALL_IDS = ["0", "0", "4294967295"]  # /proc/self/uid_map outside of user namespaces
# With the first, the API server passes WebSockets of exec, attach and port-forward through unchanged; with
# the second, the scheduler places pods whose restart rules require it.
DECLARED_FEATURES = ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]


class NodePool:
    """The pods, pod addresses and GPU devices of a node."""

    def __init__(self, settings: NodeSettings, *, directory: Path = Path("/nonexistent")) -> None:  # noqa: B008
        self.settings = settings
        self.directory = NodeDirectory(directory / settings.name)
        self.devices = DeviceManager(self.directory, changed=self._devices_changed)
        self.gpu_driver = GpuDriver(settings, self.directory)
        self.claims = ClaimManager(
            self.directory,
            active=lambda: self._pods,
            changed=self._devices_changed,
            gpus=self.gpu_driver,
        )
        # Its pods are being terminated, and it admits no others.
        self.shutting_down = False
        # Set when the node's status has changed.
        self.changed = asyncio.Event()
        self._pods: dict[str, tuple[Mapping[str, Any], Callable[[], None]]] = {}
        self._addresses: dict[str, str] = {}
        self._gpus: dict[str, list[str]] = {}
        self._next = 2
        self.allocations = Allocations(settings.allocatable())

    def address(self, uid: str, *, requested: str | None = None) -> str:
        """Allocate the pod's address; ``requested`` is its previous one."""
        if uid not in self._addresses:
            in_use = set(self._addresses.values())
            prefix = self.settings.pods
            # Round robin, because the kernel takes a moment to free the interface of a deleted pod.
            order = [*range(self._next, 255), *range(2, self._next)]
            free = next((prefix + str(last) for last in order if prefix + str(last) not in in_use), None)
            if not (address := requested or free):
                raise RuntimeCallError(
                    "sandbox", f"no IP addresses available in range set: {prefix}2-{prefix}254"
                )
            self._addresses[uid] = address
            self._next = max(2, int(address.rsplit(".", 1)[1]) % 254 + 1)
        return self._addresses[uid]

    def gpus(self, uid: str, container: str, count: int, *, claimed: Sequence[str] = ()) -> list[str] | None:
        """Allocate a container's real GPUs, or its claims'; None without any, or with a device plugin."""
        if not self.settings.gpu_devices or self.devices.has("nvidia.com/gpu"):
            return None
        key = f"{uid}/{container}"
        if self.gpu_driver.is_real:
            self._gpus[key] = list(claimed)
        elif key not in self._gpus:
            free = Counter(self.settings.gpu_devices)
            for devices in self._gpus.values():
                free.subtract(devices)
            self._gpus[key] = list(free.elements())[:count]
        return list(dict.fromkeys(self._gpus[key]))  # two shares of one GPU are one GPU

    def held_gpus(self, uid: str, container: str) -> list[str]:
        """List the real GPUs that a container has."""
        return list(dict.fromkeys(self._gpus.get(f"{uid}/{container}", [])))

    def add(self, pod: Mapping[str, Any], *, report: Callable[[], None] = lambda: None) -> None:
        """Add a pod to the node's pods; ``report`` is called when its devices have changed."""
        self._pods[pod["metadata"]["uid"]] = pod, report

    def _devices_changed(self) -> None:
        self.changed.set()
        for uid, (_, report) in list(self._pods.items()):
            if self.devices.uses(uid) or self.claims.uses(uid):
                report()

    def others(self, uid: str) -> list[Mapping[str, Any]]:
        """List the node's pods except one."""
        return [pod for name, (pod, _) in self._pods.items() if name != uid]

    def remove(self, uid: str) -> None:
        """Release a pod's allocations of the node's resources, GPUs and ports."""
        self._pods.pop(uid, None)
        self.allocations.release(uid)
        for key in [key for key in self._gpus if key.startswith(uid + "/")]:
            del self._gpus[key]

    def release(self, uid: str) -> None:
        self.remove(uid)
        self._addresses.pop(uid, None)


def node_object(settings: NodeSettings, *, version: str, pressure: Collection[str] = ()) -> dict[str, Any]:
    """Build the Node to register."""
    labels = {
        "kubernetes.io/hostname": settings.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": target()[1],
        "node.kubernetes.io/instance-type": "local",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": settings.zone,
        **settings.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.name, "labels": labels, "annotations": ANNOTATIONS},
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
    devices: DeviceManager | None = None,
    shutting_down: bool = False,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute the status of a node.

    Args:
        shutting_down: Its pods are being terminated.
        before: The node's last known object, from which transition times are kept.
    """
    before_conditions = ((before or {}).get("status") or {}).get("conditions") or []
    external = [{"type": "ExternalIP", "address": settings.external_address}]
    return {
        "addresses": [
            {"type": "InternalIP", "address": settings.address},
            *(external if settings.external_address else []),
            {"type": "Hostname", "address": settings.name},
        ],
        "capacity": settings.capacity() | (devices.quantities(healthy=False) if devices else {}),
        "allocatable": settings.allocatable() | (devices.quantities(healthy=True) if devices else {}),
        "conditions": _conditions(pressure, shutting_down=shutting_down, before=before_conditions),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "declaredFeatures": DECLARED_FEATURES,
        "features": {"supplementalGroupsPolicy": True},
        "runtimeHandlers": [{"name": name, "features": HANDLER_FEATURES} for name in ("", *HANDLERS)],
        "nodeInfo": {
            "architecture": target()[1],
            "bootID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "containerRuntimeVersion": "trainyard://0.1.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": settings.name,
            "operatingSystem": "linux",
            "osImage": "processes of " + platform.node(),
            "runningInUserNamespace": Path("/proc/self/uid_map").read_text().split() != ALL_IDS,
            "systemUUID": settings.name,
        },
    }


def _conditions(
    pressure: Collection[str], *, shutting_down: bool, before: Collection[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compute the conditions of a node; one whose status is as before keeps its transition time."""
    now = rfc3339()
    conditions = [
        _condition(kind, "True" if kind in pressure else "False", *PRESSURE[kind][kind in pressure], now)
        for kind in PRESSURE
    ]
    ready = ("True", "KubeletReady", "the kubelet runs containers as processes")
    if shutting_down:
        ready = ("False", "KubeletNotReady", "node is shutting down")
    conditions.append(_condition("Ready", *ready, now))
    known = {condition["type"]: condition for condition in before}
    for condition in conditions:
        last = known.get(condition["type"], {})
        if last.get("status") == condition["status"]:
            condition["lastTransitionTime"] = last["lastTransitionTime"]
    return conditions


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


log = logging.getLogger(__name__)

# As the kubelet: four renewals in the time that a lease lasts.
LEASE_SECONDS, RENEW_SECONDS, STATUS_SECONDS = 20, 5, 300
NOT_READY = "node.kubernetes.io/not-ready"
LEASES, LEASE_NAMESPACE = "coordination.k8s.io/v1/leases", "kube-node-lease"


async def register_node(
    api: Api, settings: NodeSettings, *, admin: Api, version: str, pressure: Collection[str] = ()
) -> None:
    """Create the Node, or update an existing one's labels and status.

    Args:
        admin: Removes the not-ready taint of a new node: the node controller would do so only once it has
            started, half a second after the scheduler.
    """
    node = node_object(settings, version=version, pressure=pressure)
    path = api_path("v1/nodes", name=settings.name)
    try:
        created = await api.post(api_path("v1/nodes"), node)
        taints = [taint for taint in created["spec"].get("taints") or [] if taint["key"] != NOT_READY]
        await admin.patch(path, {"spec": {"taints": taints or None}}, kind="merge")
    except ApiError as error:
        if error.status != 409:
            raise
        metadata = {name: node["metadata"][name] for name in ("labels", "annotations")}
        known = await api.patch(path, {"metadata": metadata})
        status = node_status(settings, version=version, pressure=pressure, before=known)
        for kind in ("capacity", "allocatable"):
            # Plugins have to register again, and until then no pod should get their devices.
            registered = [name for name in (known.get("status") or {}).get(kind) or {} if "/" in name]
            status[kind] = dict.fromkeys(registered, "0") | status[kind]
        await api.patch(path + "/status", {"status": status})


async def keep_alive(
    api: Api,
    pool: NodePool,
    *,
    version: str,
    nodes: Informer,
    pressure: Callable[[], Collection[str]] = tuple,
    changed: Callable[[str], None] = lambda reason: None,
) -> None:
    """Renew the node's lease and status; changes in its pool are reported at once.

    The status is sent early for a node that is not Ready: after the machine was suspended, the node
    controller considers it unreachable until its next status. After a sleep of the cluster, too.

    Args:
        nodes: The informer of nodes.
        pressure: Returns the active pressure conditions; each change is reported with the next heartbeat.
        changed: Called with the reason of an Event for each condition that becomes active or inactive.
    """
    settings, beats, reported = pool.settings, 0, set(pressure())
    while True:
        try:
            await renew(api, settings.name, seconds=LEASE_SECONDS)
            node, now = nodes.store.get(("", settings.name), {}), set(pressure())
            due = not is_ready(node) or beats % (STATUS_SECONDS // RENEW_SECONDS) == 0
            if now != reported or pool.changed.is_set() or (beats and due):
                pool.changed.clear()
                status = node_status(
                    settings,
                    version=version,
                    pressure=now,
                    devices=pool.devices,
                    shutting_down=pool.shutting_down,
                    before=node,
                )
                path = api_path("v1/nodes", name=settings.name, subresource="status")
                await api.patch(path, {"status": status})
            for kind in now ^ reported:
                changed(PRESSURE[kind][kind in now][0].replace("Kubelet", "Node", 1))
            reported = now
            beats += 1
        except ApiError as error:
            log.warning("heartbeat of %s: %s", settings.name, error)
            pool.changed.set()
            await asyncio.sleep(RENEW_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pool.changed.wait(), RENEW_SECONDS)


async def renew(api: Api, node: str, *, seconds: int) -> None:
    """Renew the lease of ``node`` for ``seconds``, or create it."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": rfc3339(micro=True)}
    try:
        await api.patch(api_path(LEASES, namespace=LEASE_NAMESPACE, name=node), {"spec": spec}, kind="merge")
    except ApiError as error:
        if error.status != 404:
            raise
        await api.post(
            api_path(LEASES, namespace=LEASE_NAMESPACE), {"metadata": {"name": node}, "spec": spec}
        )
