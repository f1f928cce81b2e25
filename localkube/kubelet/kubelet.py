"""The kubelet: one asyncio process for all virtual nodes of a cluster.

It registers the nodes, runs the pods that are bound to them as processes, and serves logs, exec, DNS,
Services and volumes. Killed at any moment, it reattaches to running containers when it is restarted.
"""

import asyncio
import dataclasses
import functools
import json
import logging
import signal
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from localkube.api_client import TLS_BUFFER_BYTES, Api, Informer
from localkube.api_path import api_path
from localkube.errors import LocalClusterError
from localkube.kubelet.api_clients import ApiClients
from localkube.kubelet.cluster_objects import publish_gpus, publish_identities
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.containers.pod_ids import PodIds
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.heartbeat import Heartbeat, stalls
from localkube.kubelet.http_server.server import KubeletServer
from localkube.kubelet.http_server.streaming_routes import Streams
from localkube.kubelet.images.image_manager import ImageManager, ImageService
from localkube.kubelet.images.image_programs import Programs
from localkube.kubelet.kubelet_config import KubeletConfig, PlainSettings
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.node_services import NodeServices
from localkube.kubelet.nodes.links import LinkManager
from localkube.kubelet.nodes.virtual_node import NodeStates, VirtualNode
from localkube.kubelet.pods.component_pods import ComponentPods
from localkube.kubelet.pods.container_runtime import ContainerRuntime, HostView
from localkube.kubelet.pods.eviction import EvictionManager
from localkube.kubelet.pods.mirror_pods import MirrorPods
from localkube.kubelet.pods.node_faults import NodeFaults
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod.worker import PodWorker
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.pods.process_guard import ProcessGuard
from localkube.kubelet.pods.sandboxes import Sandboxes
from localkube.kubelet.pods.shortages import ShortageReporter
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.pods.static_pods import StaticPods
from localkube.kubelet.probes.handlers import Handlers
from localkube.kubelet.resources.cgroups import ControlGroups
from localkube.kubelet.resources.gpus import GpuMeter
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.memory_release import release_memory
from localkube.kubelet.resources.pressure import Pressure, observe, parse_thresholds
from localkube.kubelet.resources.stats import StatsProvider, stats_routes
from localkube.kubelet.volumes.host_path import HiddenDirectories, mount_paths
from localkube.kubelet.volumes.object_cache import Access, ObjectCache, watch_authorities
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.kubelet.volumes.volume_shares import VolumeShares
from localkube.network.addresses import NETWORK, Addresses, LoopbackAddresses
from localkube.network.fair_shares import POD_NAMESPACES, PodNamespaces
from localkube.network.policy_enforcer import PolicyEnforcer
from localkube.network.service_records import limit_ports
from localkube.paths import write_private
from localkube.runtime import syscalls
from localkube.runtime.client import RuntimeClient, short_name
from localkube.tasks import start_task

log = logging.getLogger(__name__)

REPORTS_AT_ONCE = 6


async def run_kubelet(config: KubeletConfig) -> None:
    """Run the nodes of a cluster until its runtime exits."""
    kubelet: Kubelet | None = None

    def on_exit(entry: dict[str, Any]) -> None:
        if kubelet:
            kubelet.process_exited(entry)

    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    client = await RuntimeClient.connect(config.socket, on_exit=on_exit)
    async with ApiClients(config) as clients:
        kubelet = Kubelet(config, clients=clients, client=client)
        await kubelet.run()


class Kubelet:
    """Creates the kubelet's parts, connects and runs them."""

    def __init__(self, config: KubeletConfig, *, clients: ApiClients, client: RuntimeClient) -> None:
        self._config, self._clients, self._client = config, clients, client
        api, access = clients.informers, clients.nodes.__getitem__
        self._node_informer = Informer(api, api_path("v1/nodes"))
        self._service_informer = Informer(api, api_path("v1/services"), trim=limit_ports)
        self._pod_informer = Informer(api, api_path("v1/pods"), field_selector="spec.nodeName!=")
        self._authorities = watch_authorities(api)
        self._states = NodeStates(config.node_states)
        self._pressure, starting = _pressure(config), StartingPods(stalls(config.file.parent))
        new_node = functools.partial(
            VirtualNode,
            admin=clients.admin,
            nodes=self._node_informer,
            directory=config.node_directories,
            version=config.version,
            pressure=self._pressure,
            wait_until_idle=starting.wait_until_idle,
        )
        self._nodes = {
            node.name: new_node(node, api=access(node.name), state=self._states[node.name])
            for node in config.nodes
        }
        self._links = LinkManager(config.file.with_name("links.json"), self._nodes, client)
        authority = (config.pki / "ca.crt").read_text()
        objects = ObjectCache(access, authorities=self._authorities, authority=authority)
        host, ids = _host_view(config), PodIds(config.ids, pods=config.pods)
        images = _images(config, objects)
        images.recorders = {name: node.events for name, node in self._nodes.items()}
        volumes = _volumes(config, access, objects, hide=host.hide, ids=ids, images=images)
        files = PodFiles(config.pods, config.tmpfs, ids, starting, volumes, images)
        self._executions = Executions(client)
        self._sandboxes = _sandboxes(config, api, client, files)
        handlers = Handlers(self._sandboxes.addresses, execute=self._executions.run, version=config.version)
        limits, logs = _limits(config, client), LogFiles(config.log_limits)
        self._runtime = ContainerRuntime(
            client, host, files, ids, images, limits, logs, handlers, objects, self._service_informer
        )
        new_worker = functools.partial(
            PodWorker,
            runtime=self._runtime,
            sandboxes=self._sandboxes,
            volumes=volumes,
            pressure=self._pressure,
            starting=starting,
            turns=asyncio.Semaphore(REPORTS_AT_ONCE),
        )
        self._pods = PodManager(
            self._nodes,
            pods=self._pod_informer,
            runtime=self._runtime,
            sandboxes=self._sandboxes,
            volumes=volumes,
            new_worker=new_worker,
        )
        pods = self._pod_informer
        self._mirrors = mirrors = MirrorPods(clients.nodes, nodes=self._node_informer, pods=pods)
        self._components = ComponentPods(
            config, api=access(config.nodes[0].name), client=client, mirrors=mirrors, pods=pods
        )

    async def run(self) -> None:
        self._runtime.files.spread()
        heartbeat = Heartbeat(
            self._config.file.parent,
            late=lambda message: self._warn("KubeletSlow", message),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._resumed, heartbeat)
        start_task(heartbeat.run(), name="heartbeat", critical=True)
        config, limits, pods, nodes = self._config, self._runtime.limits, self._pods, self._nodes.values()
        reachable = [node for node in nodes if node.is_reachable]
        rights = publish_identities(self._clients.admin)
        slices = [item for node in nodes for item in node.pool.gpu_driver.slices()]
        await asyncio.gather(
            rights, publish_gpus(self._clients.admin, slices), *(node.register() for node in reachable)
        )
        eviction = EvictionManager(
            self._runtime.files,
            pods=pods.workers,
            pressure=self._pressure,
            limits=limits,
            warn=self._warn,
        )
        async with NodeServices(
            config,
            clients=self._clients,
            services=self._service_informer,
            pod_informer=self._pod_informer,
            sandboxes=self._sandboxes,
            pods=pods,
            server=self._server(),
        ) as services:
            for node in reachable:
                node.start_heartbeat()
            for name, work in (
                ("watch nodes", self._node_informer.run()),
                ("mirror pods", self._mirrors.run()),
                ("pods of the components", self._components.run()),
                ("watch authorities", self._authorities.run()),
                ("limits", limits.run()),
                ("processes", ProcessGuard(pods.workers, limits, machine=config.pid_max).run()),
                ("eviction", eviction.run()),
                ("shortages", self._shortages(eviction).run()),
                ("volumes", pods.refresh_volumes()),
                ("memory", release_memory()),
                ("image garbage", self._runtime.images.collect_garbage()),
            ):
                start_task(work, name=name, critical=True)
            static = StaticPods(
                config.file.with_name("static-pods"),
                nodes=self._nodes,
                mirrors=self._mirrors,
                begin=pods.begin_static,
                end=pods.end_static,
            )
            static.load(pods.add_static)
            start_task(self._run_pods(services), name="pods", critical=True)
            start_task(static.run(), name="static pods", critical=True)
            await self._client.gone

    def _resumed(self, heartbeat: Heartbeat) -> None:
        """Report the status of all nodes at once: the cluster was asleep (``controlplane/sleep.py``)."""
        heartbeat.ignore_delay()
        for node in self._nodes.values():
            node.pool.changed.set()

    def _shortages(self, eviction: EvictionManager) -> ShortageReporter:
        async def annotate(annotations: Mapping[str, str | None]) -> None:
            body = {"metadata": {"annotations": annotations}}
            for node in [node for node in self._nodes.values() if node.is_reachable]:
                await node.api.patch(api_path("v1/nodes", name=node.name), body, kind="merge")

        return ShortageReporter(
            observe=lambda: observe(self._config.pods, processes=self._config.pid_max),
            usages=eviction.usages,
            pods=lambda: [worker.pod for worker in self._pods.workers() if not worker.record.finished],
            shares=self._runtime.files.volumes.shares,
            annotate=annotate,
        )

    def _warn(self, reason: str, message: str) -> None:
        """Issue a warning Event for each node."""
        for node in self._nodes.values():
            node.event(reason, message, warning=True)

    def _server(self) -> KubeletServer:
        pki, usage = self._config.pki, self._runtime.limits.usage
        stats = StatsProvider(
            self._config.nodes,
            running=self._pods.running,
            control_groups=usage,
            gpus=GpuMeter(),
            held=lambda node, uid, container: self._nodes[node].pool.held_gpus(uid, container),
            links=self._links.metrics,
        )
        streams = Streams(self._pods, self._executions)
        return KubeletServer(
            self._pods,
            files=self._runtime.logs,
            component_log=self._components.log,
            cert_file=pki / "kubelet-serving.crt",
            key_file=pki / "kubelet-serving.key",
            client_ca_file=pki / "ca.crt",
            clients=None if self._config.plain else (NETWORK.address,),
            routes=[*stats_routes(stats, self._sandboxes.addresses), *streams.routes()],
        )

    async def _run_pods(self, services: NodeServices) -> None:
        watching = start_task(self._pod_informer.run(), name="watch pods", critical=True)
        await self._pod_informer.synced.wait()
        faults = NodeFaults(self._nodes, states=self._states, client=self._client, pods=self._pods)
        await faults.restore()
        await self._links.restore()
        await self._pods.run()
        await services.open()

        async def handle(request: Mapping[str, Any]) -> Any:
            if request["verb"] == "show":
                return self._show(request["content"])
            if request["verb"] == "link":
                return await self._links.change(request)
            return await faults.switch(request["verb"], request["node"])

        await serve_control_socket(self._config.control, handle)
        await watching

    def _show(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Show packages to the containers that start from now on, and after a restart of the kubelet."""
        before, settings = self._runtime.host.config, json.loads(self._config.file.read_text())
        old = [path for path in before.variables.get("PYTHONPATH", "").split(":") if path]
        new = [path for path in content["variables"].get("PYTHONPATH", "").split(":") if path]
        path = ":".join(dict.fromkeys([*new, *old]))
        changed: dict[str, Any] = {
            "packages": tuple(dict.fromkeys([*before.packages, *content["packages"]])),
            "covered": tuple(sorted({*before.covered, *content["covered"]})),
            "variables": {**content["variables"]} | ({"PYTHONPATH": path} if path else {}),
        }
        self._runtime.host.config = dataclasses.replace(before, **changed)
        settings |= changed
        write_private(self._config.file, json.dumps(settings, indent=1))
        return {}

    def process_exited(self, entry: dict[str, Any]) -> None:
        """Handle the exit of a process of the runtime."""
        match entry["owner"]:
            case "exec":
                self._executions.command_exited(entry)
            case "container":
                self._pods.container_exited(entry)
            case "component":
                self._components.program_exited()


def _host_view(config: KubeletConfig) -> HostView:
    hide, plain = list(config.hide), None
    if config.plain:
        plain = PlainPods(_loopback(config.plain), Path(config.plain.preload))
    else:
        mounts = Path("/proc/self/mountinfo").read_text()
        hide = sorted({place for directory in hide for place in mount_paths(directory, mounts)})
    return HostView(config, HiddenDirectories(hide), plain)


def _loopback(plain: PlainSettings) -> LoopbackAddresses:
    return LoopbackAddresses(plain.octet, low=plain.low)


def _sandboxes(config: KubeletConfig, api: Api, client: RuntimeClient, files: PodFiles) -> Sandboxes:
    events = EventRecorder(api)
    start_task(events.run(), name="events of the cluster", critical=True)
    policies = PolicyEnforcer(
        api,
        client=client,
        warn=lambda policy, reason, message: events.record(policy, reason, message, warning=True),
        plain=bool(config.plain),
    )
    addresses = _loopback(config.plain) if config.plain else Addresses()
    namespaces = PodNamespaces(config.file.with_name(POD_NAMESPACES))
    return Sandboxes(client, addresses, namespaces, policies, files)


def _limits(config: KubeletConfig, client: RuntimeClient) -> Limits:
    def kill(identity: str) -> None:
        start_task(client.call("kill", id=identity, signal=9), name=f"out of memory {identity}")

    directory, pids_limit = config.socket.parent, config.pod_pids_limit
    return Limits(
        groups=ControlGroups.claim(directory, pids_limit=pids_limit, processes=config.pid_max)
        if config.control_groups
        else None,
        kill=kill,
    )


def _images(config: KubeletConfig, objects: ObjectCache) -> ImageManager:
    return ImageManager(
        secret=objects.secret,
        programs=Programs(config.programs, preloaded=bool(config.plain)),
        service=ImageService(config.image_service) if config.image_service else None,
        mode=config.images,
        overlay=config.overlay,
    )


def _volumes(
    config: KubeletConfig,
    access: Access,
    objects: ObjectCache,
    *,
    hide: HiddenDirectories,
    ids: PodIds,
    images: ImageManager,
) -> VolumeManager:
    allocatable = {node.name: node.allocatable() for node in config.nodes}
    return VolumeManager(
        access,
        pods=config.pods,
        tmpfs=config.tmpfs,
        claimed=config.volumes.resolve(),
        node_directories=config.node_directories,
        hidden=hide,
        allocatable=lambda node: allocatable[node],
        objects=objects,
        ids=ids,
        images=images,
        shares=VolumeShares.of_places(memory=config.tmpfs, disk=config.pods),
        mount=None if config.plain else syscalls.mount,
    )


def _pressure(config: KubeletConfig) -> Pressure:
    pressure = Pressure(
        parse_thresholds(config.eviction_hard),
        transition=config.eviction_pressure_transition_period,
        observe=lambda: observe(config.pods, processes=config.pid_max),
    )
    pressure.measure()
    return pressure


async def serve_control_socket(
    path: Path, handle: Callable[[Mapping[str, Any]], Awaitable[Any]]
) -> asyncio.Server:
    """Serve JSON lines on a Unix socket, for operations that the Kubernetes API does not have.

    Each request is answered with ``{"result": …}`` or ``{"error": …}``.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            response = {"result": await handle(json.loads(await reader.readline()))}
        except LocalClusterError as error:
            response = {"error": error.as_dict()}
        except Exception as error:  # the client must not wait for a response that never comes
            log.exception("a request failed")
            fix = "read the kubelet's log"
            response = {"error": LocalClusterError(repr(error), about=str(path), fix=fix).as_dict()}
        writer.write(json.dumps(response).encode() + b"\n")
        writer.close()

    with short_name(path) as name:
        server = await asyncio.start_unix_server(answer, path=name)
    path.chmod(0o600)
    return server
