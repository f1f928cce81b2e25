"""The kubelet: one asyncio process for all virtual nodes of a cluster.

It registers the nodes, runs the pods that are bound to them as processes, and serves logs, exec, DNS,
Services and volumes. Killed at any moment, it reattaches to running containers when it is restarted.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.errors import LocalClusterError
from localkube.kubelet.config import KubeletConfig
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images.image_manager import ImageManager, ImageService
from localkube.kubelet.images.image_programs import Programs
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.node_services import NodeServices
from localkube.kubelet.nodes.node_faults import NodeFaults
from localkube.kubelet.nodes.simulation import MARK, Simulation
from localkube.kubelet.nodes.virtual_node import NodeStates, VirtualNode
from localkube.kubelet.pods.component_pods import ComponentPods
from localkube.kubelet.pods.context import HostView, Runtime
from localkube.kubelet.pods.mirror_pods import MirrorPods
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.pods.pod_ids import PodIds
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.pods.static_pods import StaticPods
from localkube.kubelet.resources.cgroups import ControlGroups
from localkube.kubelet.resources.eviction import EvictionManager
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.pressure import Pressure, observe, parse_thresholds
from localkube.kubelet.resources.stats import StatsProvider
from localkube.kubelet.volumes.host_path import HiddenDirectories, everywhere
from localkube.kubelet.volumes.object_cache import ObjectCache, watch_authorities
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.network.addresses import ClusterNetwork, LoopbackAddresses, NamespaceAddresses
from localkube.network.fair_shares import POD_NAMESPACES, PodNamespaces
from localkube.network.policy_enforcer import PolicyEnforcer
from localkube.runtime import syscalls
from localkube.runtime.client import RuntimeClient, short_name
from localkube.tasks import start_task

log = logging.getLogger(__name__)


class Kubelet:
    """Runs the nodes of a cluster until its runtime exits."""

    def __init__(self, config: KubeletConfig) -> None:
        self._config = config
        self._executions: Executions | None = None
        self._pods: PodManager | None = None
        self._components: ComponentPods | None = None

    async def run(self) -> None:
        config = self._config
        client = await RuntimeClient.connect(config.socket, on_exit=self._exited)
        async with Api(
            config.server,
            ca_file=config.pki / "ca.crt",
            cert_file=config.pki / "kubelet.crt",
            key_file=config.pki / "kubelet.key",
        ) as api:
            authorities = watch_authorities(api)
            runtime = _runtime(config, api, client, ObjectCache(api, authorities=authorities))
            self._executions = runtime.executions
            states = NodeStates(config.node_states)
            nodes = {n.name: VirtualNode(n, runtime=runtime, state=states[n.name]) for n in config.nodes}
            reachable = [node for node in nodes.values() if node.is_reachable]
            await asyncio.gather(*(node.register() for node in reachable))
            bound = Informer(api, "/api/v1/pods", field_selector="spec.nodeName!=", skip_simulated=True)
            pods = self._pods = PodManager(nodes, runtime=runtime, pods=bound)
            eviction = EvictionManager(
                config.pods,
                pods=pods.workers,
                pressure=runtime.pressure,
                limits=runtime.limits,
                warn=lambda *event: [node.event(*event, warning=True) for node in nodes.values()],
            )
            stats = StatsProvider(config.nodes, running=pods.running, control_groups=runtime.limits.usage)
            mirrors = MirrorPods(api, nodes=runtime.nodes, pods=bound, names=frozenset(nodes))
            self._components = _component_pods(config, runtime, mirrors=mirrors, bound=bound)
            async with NodeServices(
                config, runtime=runtime, bound=bound, pods=pods, stats=stats, components=self._components
            ) as services:
                for node in reachable:
                    node.start_heartbeat()
                for name, work in (
                    ("watch nodes", runtime.nodes.run()),
                    ("mirror pods", mirrors.run()),
                    ("pods of the components", self._components.run()),
                    ("watch authorities", authorities.run()),
                    ("limits", runtime.limits.run()),
                    ("eviction", eviction.run()),
                    ("volumes", pods.refresh_volumes()),
                    ("image garbage", runtime.images.collect_garbage()),
                ):
                    start_task(work, name=name, critical=True)
                faults = NodeFaults(nodes, states=states, client=client, pods=pods)
                static = StaticPods(
                    config.file.with_name("static-pods"),
                    nodes=nodes,
                    mirrors=mirrors,
                    begin=pods.begin_static,
                    end=pods.end_static,
                )
                static.load(pods.add_static)
                pods_work = self._run_pods(bound, pods, faults, services)
                start_task(pods_work, name="pods", critical=True)
                start_task(static.run(), name="static pods", critical=True)
                await client.gone

    async def _run_pods(
        self, bound: Informer, pods: PodManager, faults: NodeFaults, services: NodeServices
    ) -> None:
        watching = start_task(bound.run(), name="watch pods", critical=True)
        await bound.synced.wait()
        await faults.restore()
        await pods.run()
        await services.open()
        simulation = Simulation(settings=self._config.file, state=self._config.simulated)
        simulation.restore()

        async def handle(request: Mapping[str, Any]) -> dict[str, Any]:
            if request["verb"] == "simulate":
                return await simulation.set(request["count"])
            return await faults.switch(request["verb"], request["node"])

        await serve_control_socket(self._config.control, handle)
        await watching

    def _exited(self, entry: dict[str, Any]) -> None:
        if entry["owner"] == "exec" and self._executions:
            self._executions.exited(entry)
        if entry["owner"] == "container" and self._pods:
            self._pods.exited(entry)
        if entry["owner"] == "component" and self._components:
            self._components.exited()


def _runtime(config: KubeletConfig, api: Api, client: RuntimeClient, objects: ObjectCache) -> Runtime:
    """Create the parts that all pods use."""
    plain = config.plain
    addresses = LoopbackAddresses(plain.octet, low=plain.low) if plain else NamespaceAddresses()
    mounts = "" if plain else Path("/proc/self/mountinfo").read_text()
    hide = HiddenDirectories(
        config.hide
        if plain
        else sorted({place for directory in config.hide for place in everywhere(directory, mounts)})
    )
    ids = PodIds(config.ids, pods=config.pods)

    def kill(identity: str) -> None:
        start_task(client.call("kill", id=identity, signal=9), name=f"out of memory {identity}")

    images = _images(config, objects)
    volumes = _volumes(config, api, objects, hide=hide, ids=ids, images=images)
    starting = StartingPods()
    events = EventRecorder(api)
    start_task(events.run(), name="events of the cluster", critical=True)
    return Runtime(
        api=api,
        client=client,
        objects=objects,
        images=images,
        volumes=volumes,
        logs=LogFiles(config.log_limits),
        executions=Executions(client),
        events=events,
        policies=PolicyEnforcer(
            api,
            client=client,
            network=ClusterNetwork(),
            warn=lambda policy, reason, message: events.record(policy, reason, message, warning=True),
            plain=bool(plain),
        ),
        files=PodFiles(config.pods, config.tmpfs, ids, starting, volumes, images),
        host=HostView(hide, config.environment, config.sources, config.covered, config.seccomp),
        ids=ids,
        starting=starting,
        forkserver=config.forkserver,
        node_directories=config.node_directories,
        services=Informer(api, "/api/v1/services"),
        nodes=Informer(api, "/api/v1/nodes", label_selector=f"!{MARK}"),
        version=config.version,
        limits=Limits(
            groups=ControlGroups.claim(config.socket.parent, pids_limit=config.pod_pids_limit)
            if config.control_groups
            else None,
            kill=kill,
        ),
        pressure=_pressure(config),
        addresses=addresses,
        namespaces=PodNamespaces(config.file.with_name(POD_NAMESPACES)),
        plain=PlainPods(addresses, Path(plain.preload)) if plain else None,
    )


def _component_pods(
    config: KubeletConfig, runtime: Runtime, *, mirrors: MirrorPods, bound: Informer
) -> ComponentPods:
    return ComponentPods(
        runtime.api,
        client=runtime.client,
        mirrors=mirrors,
        pods=bound,
        plan=config.file.with_name("plan.json"),
        node=config.nodes[0],
        address=runtime.network.address,
        version=config.version,
    )


def _images(config: KubeletConfig, objects: ObjectCache) -> ImageManager:
    return ImageManager(
        secret=objects.secret,
        programs=Programs(config.programs),
        service=ImageService(config.image_service) if config.image_service else None,
        mode=config.images,
        overlay=config.overlay,
    )


def _volumes(
    config: KubeletConfig,
    api: Api,
    objects: ObjectCache,
    *,
    hide: HiddenDirectories,
    ids: PodIds,
    images: ImageManager,
) -> VolumeManager:
    allocatable = {node.name: node.allocatable() for node in config.nodes}
    return VolumeManager(
        api,
        pods=config.pods,
        tmpfs=config.tmpfs,
        claimed=config.volumes.resolve(),
        node_directories=config.node_directories,
        hidden=hide,
        allocatable=lambda node: allocatable[node],
        objects=objects,
        ids=ids,
        images=images,
        mount=None if config.plain else syscalls.mount,
    )


def _pressure(config: KubeletConfig) -> Pressure:
    pressure = Pressure(
        parse_thresholds(config.eviction_hard),
        transition=config.eviction_pressure_transition_period,
        observe=lambda: observe(config.pods),
    )
    pressure.look()
    return pressure


async def serve_control_socket(
    path: Path, handle: Callable[[Mapping[str, Any]], Awaitable[Any]]
) -> asyncio.Server:
    """Serve JSON lines on a Unix socket, for what Kubernetes has no verb for.

    Each request is answered with ``{"result": …}`` or ``{"error": …}``.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            response = {"result": await handle(json.loads(await reader.readline()))}
        except LocalClusterError as error:
            response = {"error": error.as_dict()}
        except Exception as error:  # the client must not wait for a response that never comes
            log.exception("a request failed")
            fix = "look into the kubelet's log"
            response = {"error": LocalClusterError(repr(error), about=str(path), fix=fix).as_dict()}
        writer.write(json.dumps(response).encode() + b"\n")
        writer.close()

    with short_name(path) as name:
        server = await asyncio.start_unix_server(answer, path=name)
    path.chmod(0o600)
    return server
