"""The DRA drivers of one node, which register with sockets in ``plugins_registry``.

Plugins of other types, such as CSI drivers, are ignored.

Source: pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin of Kubernetes 1.37
"""

import asyncio
import logging
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localkube.api_client import Api
from localkube.api_path import MutableObject, api_path
from localkube.errors import ApiError
from localkube.kubelet.plugins.rpc import PluginClient, PluginError, plugin_messages
from localkube.kubelet.volumes.node_directory import NodeDirectory
from localkube.tasks import start_task

if TYPE_CHECKING:
    from google.protobuf.message import Message

log = logging.getLogger(__name__)

CHECK_SECONDS, CALL_SECONDS = 0.5, 45.0
WITHDRAW_SECONDS = 30.0  # after which no pod is scheduled to the devices of a driver that has disconnected
SLICES = api_path("resource.k8s.io/v1/resourceslices")
# Of which the messages are the same; the newest that a driver has is used.
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
HEALTH_SECONDS, HEALTH_RETRY_SECONDS, LONGEST_MESSAGE = 30.0, 5.0, 1024
HEALTHS = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
MAX_DEVICES = 4096  # of a node whose health is kept
REGISTRATION = "pluginregistration.Registration"
VERSIONS = ("v1", "v1beta1")  # of which the messages are the same


@dataclass(frozen=True)
class DraDriver:
    """A driver that has registered.

    Attributes:
        directory, endpoint: The location of its socket, which is beneath the directory.
        service: The gRPC service.
    """

    directory: Path
    endpoint: str
    service: str

    async def call(self, method: str, request: "Message", answer: "type[Message]") -> Any:
        """Call a method; ``answer`` is the class of its message.

        Raises:
            PluginError: The driver cannot be reached, or refuses.
        """
        return await _call(self.directory, self.endpoint, f"{self.service}/{method}", request, answer)


class DraDrivers:
    """Follows the registration sockets of a node.

    Args:
        scanned: Awaited after each scan of the sockets.
        changed: Called when the health of devices has changed.
        slices: The ResourceSlices that drivers have published for the node.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        *,
        scanned: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        slices: "PublishedSlices",
    ) -> None:
        self._directory, self._scanned, self._changed, self._slices = directory, scanned, changed, slices
        self._registry = directory.path / "plugins_registry"
        self._drivers: dict[Path, tuple[str, DraDriver]] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._connections: dict[Path, PluginClient] = {}
        self._watches: dict[Path, asyncio.Task[None]] = {}
        # By driver, pool and device: the reported health, and until when it is valid.
        self._health: dict[tuple[str, str, str], tuple[dict[str, str], float]] = {}
        self._withdrawals: dict[str, float] = {}
        self._following: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Watch for registrations, from the first call on."""
        if self._following is None:
            self._following = start_task(self._follow(), name=f"DRA drivers of {self._registry}")

    def get(self, name: str) -> DraDriver | None:
        """Get a driver by its name: of several, the one that registered last."""
        return next((driver for known, driver in reversed(self._drivers.values()) if known == name), None)

    async def _follow(self) -> None:
        self._withdraw_later(await self._slices.drivers())
        while True:
            sockets = _sockets(self._registry)
            former = [path for path, identity in self._seen.items() if sockets.get(path) != identity]
            for path in {*former, *(self._drivers.keys() - self._seen.keys())}:  # or half registered
                await self._forget(path)
            for path in sockets.keys() - self._seen.keys():
                try:
                    await self._register(path)
                    self._seen[path] = sockets[path]
                except (PluginError, OSError) as error:  # it may not serve yet
                    log.info("plugin %s: %s", path.name, error)
            await self._withdraw()
            await self._scanned()
            await asyncio.sleep(CHECK_SECONDS)

    async def _forget(self, path: Path) -> None:
        """Forget a driver whose socket has gone."""
        self._seen.pop(path, None)
        if path not in self._drivers:
            return
        name, _ = self._drivers.pop(path)
        self._withdraw_later([name])
        if watch := self._watches.pop(path, None):
            watch.cancel()
        self._health = {place: health for place, health in self._health.items() if place[0] != name}
        await self._connections.pop(path).close()

    def _withdraw_later(self, names: Iterable[str]) -> None:
        deadline = time.monotonic() + WITHDRAW_SECONDS
        self._withdrawals = dict.fromkeys(names, deadline) | self._withdrawals

    async def _withdraw(self) -> None:
        """Delete the ResourceSlices of drivers that have been disconnected for a while."""
        usable = {
            self._drivers[path][0] for path, client in self._connections.items() if not client.is_refused
        }
        self._withdraw_later({name for name, _ in self._drivers.values()} - usable)
        due = [
            name
            for name, deadline in self._withdrawals.items()
            if name in usable or deadline <= time.monotonic()
        ]
        for name in due:
            del self._withdrawals[name]
            if name not in usable and not await self._slices.delete(name):
                self._withdraw_later([name])

    async def _register(self, path: Path) -> None:
        messages = plugin_messages()
        info = await self._call_registration(path, "GetInfo", messages.Empty(), messages.PluginInfo)
        if info.type != "DRAPlugin":
            return
        problem = ""
        version = _version(info.supported_versions)
        place = self._directory.resolve(info.endpoint) if info.endpoint else (self._registry, path.name)
        if not version:
            services = f"{list(info.supported_versions)} are supported by the kubelet ({list(VERSIONS)})"
            problem = f"none of services supported by the plugin {services}"
        elif not place:
            problem = f"endpoint {info.endpoint} is not below /var/lib/kubelet"
        if problem:
            problem = f"RegisterPlugin error -- plugin validation failed with err: {problem}"
            log.warning("DRA driver %s: %s", info.name, problem)
        elif place:
            service = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
            health = next((name for name in HEALTH_SERVICES if name in info.supported_versions), "")
            self._connections[path] = client = PluginClient(*place, service=health)
            if health:
                watch = self._watch_health(info.name, client)
                self._watches[path] = start_task(watch, name=f"health of {info.name}")
            self._drivers[path] = info.name, DraDriver(*place, service)
            log.info("DRA driver %s registered", info.name)
        status = messages.RegistrationStatus(plugin_registered=not problem, error=problem)
        await self._call_registration(path, "NotifyRegistrationStatus", status, messages.Empty)

    def health(self, driver: str, pool: str, device: str) -> dict[str, str]:
        """Get the health of a device, as a pod's status has it."""
        reported, until = self._health.get((driver, pool, device), ({}, 0.0))
        return reported if time.monotonic() < until else {"health": HEALTHS[0]}

    async def _watch_health(self, driver: str, client: PluginClient) -> None:
        messages = plugin_messages()
        while True:
            try:
                async for answer in client.stream(
                    "NodeWatchResources", messages.Empty(), messages.HealthResponse
                ):
                    for item in answer.devices:
                        place = driver, item.device.pool_name, item.device.device_name
                        if place not in self._health and len(self._health) >= MAX_DEVICES:
                            continue  # a driver is a pod's program
                        health = {"health": HEALTHS.get(item.health, HEALTHS[0])}
                        if text := item.message:
                            long = len(text) > LONGEST_MESSAGE
                            health["message"] = f"{text[: LONGEST_MESSAGE - 3]}..." if long else text
                        seconds = max(item.health_check_timeout_seconds, 0) or HEALTH_SECONDS
                        self._health[place] = health, time.monotonic() + seconds
                    self._changed()
            except PluginError as error:
                log.info("health of the devices of %s: %s", driver, error)
            await asyncio.sleep(HEALTH_RETRY_SECONDS)

    async def _call_registration(
        self, path: Path, method: str, request: "Message", answer: "type[Message]"
    ) -> Any:
        return await _call(self._registry, path.name, f"{REGISTRATION}/{method}", request, answer)


class PublishedSlices:
    """The ResourceSlices that drivers have published for one node.

    Args:
        node: Its name.
        excluded: The driver whose slices are left alone: the kubelet's own.
    """

    def __init__(self, node: str, *, excluded: str) -> None:
        self.api: Api | None = None
        self._of_node, self._excluded = f"spec.nodeName={node}", excluded

    async def drivers(self) -> set[str]:
        assert self.api, "a node has a client before it has pods"
        listed = await _attempt(self.api.get(SLICES, fieldSelector=self._of_node))
        return {item["spec"]["driver"] for item in (listed or {}).get("items") or ()} - {self._excluded}

    async def delete(self, driver: str) -> bool:
        """Delete a driver's slices; False if that must be retried."""
        assert self.api, "a node has a client before it has pods"
        selector = f"{self._of_node},spec.driver={driver}"
        return await _attempt(self.api.delete(SLICES, fieldSelector=selector)) is not None


async def _attempt(call: Awaitable[MutableObject]) -> MutableObject | None:
    try:
        return await call
    except ApiError as error:
        log.warning("ResourceSlices: %s", error.message)
        return None


async def _call(
    directory: Path, endpoint: str, method: str, request: "Message", answer: "type[Message]"
) -> Any:
    service, _, method = method.rpartition("/")
    try:
        client = PluginClient(directory, endpoint, service=service)
    except OSError as error:
        raise PluginError(f"rpc error: code = Unavailable desc = {endpoint}: {error.strerror}") from error
    try:
        return await client.call(method, request, answer, seconds=CALL_SECONDS)
    finally:
        await client.close()


def _version(services: Sequence[str]) -> str | None:
    """Choose the first version of the driver's services that the kubelet has."""
    versions = (service.removesuffix(".DRAPlugin") for service in services)
    return next((version for version in versions if version in VERSIONS), None)


def _sockets(directory: Path) -> dict[Path, tuple[int, int]]:
    """List the sockets of a directory, with an identity that changes when one is replaced."""
    sockets = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            sockets[path] = status.st_ino, status.st_ctime_ns
    return sockets
