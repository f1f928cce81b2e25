"""The devices of one node that device plugins have registered, and their allocation to containers.

A plugin registers on ``kubelet.sock``, and the kubelet follows its list of devices. Allocations are stored in
a file: a container gets the same devices when it is restarted, also by the next kubelet.

Source: https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.plugins.cdi import ContainerEdits, container_edits
from localkube.kubelet.plugins.rpc import PluginClient, PluginError, PluginServer, plugin_messages
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, containers
from localkube.kubelet.status.restart_policy import is_sidecar
from localkube.kubelet.volumes.node_directory import NodeDirectory
from localkube.paths import read_json, write_private
from localkube.tasks import start_task

log = logging.getLogger(__name__)

VERSION, HEALTHY = "v1beta1", "Healthy"
SERVICE = "v1beta1.DevicePlugin"
PRE_START_SECONDS = 30.0
# How long the devices of a plugin that has disconnected are listed as unhealthy.
STOPPED_SECONDS = 300.0


@dataclass
class _Resource:
    """One extended resource.

    Attributes:
        devices: Health by id.
        plugin: None once it has disconnected.
    """

    options: Any
    devices: dict[str, str] = field(default_factory=dict)
    plugin: PluginClient | None = None
    task: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> set[str]:
        return {name for name, health in self.devices.items() if health == HEALTHY}


class DeviceManager:
    """Registers device plugins, and allocates their devices.

    Args:
        changed: Called when the node has more or fewer devices.
    """

    def __init__(self, directory: NodeDirectory, *, changed: Callable[[], None]) -> None:
        self._directory, self._changed = directory, changed
        self._checkpoint = directory.device_plugins / "kubelet_internal_checkpoint"
        self._resources: dict[str, _Resource | None] = {}
        self._lock = asyncio.Lock()
        self._server: PluginServer | None = None
        # Pod, container, resource: its ids, and the plugin's answer.
        self._grants: dict[str, dict[str, dict[str, Any]]] = read_json(self._checkpoint)

    async def open(self) -> None:
        """Accept registrations, from the first call on."""
        if self._server:
            return
        self._server = PluginServer(
            self._directory.device_plugins / "kubelet.sock",
            service="v1beta1.Registration",
            method="Register",
            request=plugin_messages().RegisterRequest,
            handle=self._register,
        )
        await self._server.start()

    def quantities(self, *, healthy: bool) -> dict[str, str | None]:
        """Count devices by resource: the healthy ones, or all; None for a resource that was removed."""
        return {
            name: None if resource is None else str(len(resource.healthy if healthy else resource.devices))
            for name, resource in self._resources.items()
        }

    def uses(self, uid: str) -> bool:
        return any(self._grants.get(uid, {}).values())

    def has(self, resource: str) -> bool:
        """Check whether a plugin has registered a resource."""
        return self._resources.get(resource) is not None

    # Plugins.

    async def _register(self, request: Any) -> Any:
        name = request.resource_name
        if request.version != VERSION:
            supported = f"Supported version is [{VERSION}]"
            raise PluginError(
                f"requested API version {request.version!r} is not supported by kubelet. {supported}"
            )
        if "/" not in name or name.partition("/")[0].endswith("kubernetes.io"):
            raise PluginError(f"the ResourceName {name!r} is invalid")
        log.info("device plugin for %s registered", name)
        start_task(self._follow(name, request), name=f"device plugin {name}")
        return plugin_messages().Empty()

    async def _follow(self, name: str, request: Any) -> None:
        """Follow a plugin's list of devices until it ends."""
        messages = plugin_messages()
        before = self._resources.get(name)
        plugin = PluginClient(self._directory.device_plugins, request.endpoint, service=SERVICE)
        resource = _Resource(request.options, dict(before.devices) if before else {}, plugin)
        if before and before.task:
            before.task.cancel()
        self._resources[name] = resource
        resource.task = asyncio.current_task()
        try:
            answers = plugin.stream("ListAndWatch", messages.Empty(), messages.ListAndWatchResponse)
            async for answer in answers:
                resource.devices = {device.ID: device.health for device in answer.devices}
                self._changed()
        except PluginError as error:
            log.warning("device plugin for %s: %s", name, error)
        finally:
            await plugin.close()
        if self._resources.get(name) is resource:
            resource.plugin = None
            resource.devices = dict.fromkeys(resource.devices, "Unhealthy")
            self._changed()
            await asyncio.sleep(STOPPED_SECONDS)
            self._resources[name] = None
            self._changed()

    # Containers.

    async def allocate(self, pod: Object) -> None:
        """Allocate the devices that a pod's containers request; init containers' devices are reused.

        Raises:
            PluginError: There are too few, or the plugin refuses; with the kubelet's message.
        """
        async with self._lock:
            grants = self._grants.setdefault(pod["metadata"]["uid"], {})
            reusable: dict[str, set[str]] = {}
            try:
                for kind, container in containers(pod):
                    for resource, count in self._requested(container) if kind != EPHEMERAL else ():
                        granted = grants.setdefault(container["name"], {})
                        if resource not in granted:
                            granted[resource] = await self._allocate(
                                resource, count, reusable.get(resource, ())
                            )
                        if kind == INIT and not is_sidecar(container):
                            reusable.setdefault(resource, set()).update(granted[resource]["ids"])
                        else:
                            reusable.get(resource, set()).difference_update(granted[resource]["ids"])
            except PluginError:
                self.release(pod["metadata"]["uid"])
                raise
            if not grants:
                self._grants.pop(pod["metadata"]["uid"])
            elif any(grants.values()):
                self._save()

    def _requested(self, container: Object) -> Iterable[tuple[str, int]]:
        limits = (container.get("resources") or {}).get("limits") or {}
        granted = {name for pod in self._grants.values() for grants in pod.values() for name in grants}
        known = granted | self._resources.keys()
        return [(name, int(count)) for name, count in limits.items() if name in known and int(count)]

    async def _allocate(self, name: str, count: int, reusable: Iterable[str]) -> dict[str, Any]:
        messages = plugin_messages()
        resource = self._resources.get(name)
        if resource is None:
            raise PluginError(f"cannot allocate unregistered device {name}")
        if not resource.healthy or not resource.plugin:
            raise PluginError(f"no healthy devices present; cannot allocate unhealthy devices {name}")
        in_use = {
            device for pod in self._grants.values() for grant in pod.values() for device in _ids(grant, name)
        }
        reused = sorted(set(reusable) & resource.healthy)[:count]
        free = sorted(resource.healthy - in_use)
        if len(reused) + len(free) < count:
            numbers = f"Requested: {count - len(reused)}, Available: {len(free)}"
            raise PluginError(f"requested number of devices unavailable for {name}. {numbers}")
        chosen = reused + free[: count - len(reused)]
        if resource.options.get_preferred_allocation_available and count - len(reused) < len(free):
            chosen = await self._preferred(resource, reused, free, count) or chosen
        container_request = messages.AllocateRequest.Container(devices_ids=chosen)
        request = messages.AllocateRequest(container_requests=[container_request])
        answer = await resource.plugin.call("Allocate", request, messages.AllocateResponse)
        (response,) = answer.container_responses
        return {
            "ids": chosen,
            "envs": dict(response.envs),
            "mounts": [[mount.container_path, mount.host_path, mount.read_only] for mount in response.mounts]
            + [[device.container_path, device.host_path, False] for device in response.devices],
            "cdi": [device.name for device in response.cdi_devices],
        }

    async def _preferred(
        self, resource: _Resource, reused: list[str], free: list[str], count: int
    ) -> list[str] | None:
        messages = plugin_messages()
        container_request = messages.PreferredAllocationRequest.Container(
            available_deviceIDs=[*reused, *free], must_include_deviceIDs=reused, allocation_size=count
        )
        request = messages.PreferredAllocationRequest(container_requests=[container_request])
        response = messages.PreferredAllocationResponse
        assert resource.plugin is not None
        answer = await resource.plugin.call("GetPreferredAllocation", request, response)
        preferred = list(answer.container_responses[0].deviceIDs) if answer.container_responses else []
        fits = len(set(preferred)) == count and set(reused) <= set(preferred) <= {*reused, *free}
        return preferred if fits else None

    async def grant(self, pod: Object, container: Object) -> ContainerEdits:
        """Prepare the start of a container, and return its variables and mounts for its devices."""
        granted = self._grants.get(pod["metadata"]["uid"], {}).get(container["name"], {})
        whole = ContainerEdits()
        for name, grant in granted.items():
            await self._pre_start(name, grant["ids"])
            mounts = [(target, source, read_only) for target, source, read_only in grant["mounts"]]
            whole.extend(ContainerEdits(grant["envs"], mounts))
            whole.extend(container_edits(grant["cdi"], self._directory.cdi))
        return whole

    async def _pre_start(self, name: str, ids: list[str]) -> None:
        messages = plugin_messages()
        resource = self._resources.get(name)
        if resource and resource.plugin and resource.options.pre_start_required:
            request = messages.PreStartContainerRequest(devices_ids=ids)
            await resource.plugin.call(
                "PreStartContainer", request, messages.Empty, seconds=PRE_START_SECONDS
            )

    def statuses(self, uid: str, container: str) -> list[dict[str, Any]]:
        """List the health of a container's devices, as its status reports it."""
        return [
            {
                "name": name,
                "resources": [
                    {"resourceID": identifier, "health": self._health(name, identifier)}
                    for identifier in grant["ids"]
                ],
            }
            for name, grant in self._grants.get(uid, {}).get(container, {}).items()
        ]

    def _health(self, name: str, device: str) -> str:
        resource = self._resources.get(name)
        healthy = resource is not None and resource.devices.get(device, HEALTHY) == HEALTHY
        return "Healthy" if healthy else "Unhealthy"

    def release(self, uid: str) -> None:
        """Release a pod's devices."""
        if self._grants.pop(uid, None):
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk only the next kubelet lacks it
            self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._checkpoint, json.dumps(self._grants))


def _ids(granted: Mapping[str, Any], name: str) -> list[str]:
    return granted[name]["ids"] if name in granted else []
