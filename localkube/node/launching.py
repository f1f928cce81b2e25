"""What all pods share on this machine, and how one container's order is put together from it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localkube.node.api import Api, Watch
from localkube.node.containers import Host, base_environment, network_mounts, order
from localkube.node.environment import ConfigError, container_environment, references, service_environment
from localkube.node.events import Events
from localkube.node.images import command_line, stand_in
from localkube.node.logs import LogFiles
from localkube.node.memory import MemoryWatch
from localkube.node.objects import Objects
from localkube.node.orders import Orders
from localkube.node.volumes import Volumes, mounts

if TYPE_CHECKING:
    from localkube.node.pods import PodWorker

WARM_ANNOTATION = "trainyard/warm-start"
TERMINATION_PATH = "/dev/termination-log"
REPORTS_AT_ONCE = 6
MESSAGE_BYTES, FALLBACK_BYTES = 4096, 2048


@dataclass(frozen=True)
class Site:
    """The addresses of a site's network."""

    address: str = "10.244.0.1"
    prefix: int = 16
    gateway: str = "10.244.255.254"
    services: str = "10.96.0.0"
    services_prefix: int = 12

    def pod_network(self) -> dict[str, Any]:
        """Return what the spawner needs to connect a pod."""
        return {
            "prefix": self.prefix,
            "router": self.address,
            "gateway": self.gateway,
            "services": self.services,
            "services_prefix": self.services_prefix,
        }


@dataclass
class Runtime:
    """The parts that every pod's worker uses; ``warm`` tells what a warm parent may start."""

    api: Api
    orders: Orders
    objects: Objects
    volumes: Volumes
    logs: LogFiles
    events: Events
    host: Host
    pods: Path
    services: Watch
    nodes: Watch
    site: Site = field(default_factory=Site)
    warm: Callable[[list[str], Mapping[str, str]], Any] = lambda argv, env: None
    reporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPORTS_AT_ONCE))
    memory: MemoryWatch = field(default_factory=lambda: MemoryWatch(lambda identity: None))
    out_of_memory: set[str] = field(default_factory=set)

    def pod_directory(self, uid: str) -> Path:
        return self.pods / uid

    def log_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "logs" / container / f"{restart}.log"

    def termination_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "termination" / f"{container}.{restart}"

    def termination_message(self, uid: str, container: Mapping[str, Any], restart: int, code: int) -> str:
        """Return what the container left to say about its end."""
        path = self.termination_path(uid, container["name"], restart)
        text = _head(path, MESSAGE_BYTES)
        fallback = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not text and code and fallback:
            text = _last_output(self.log_path(uid, container["name"], restart))
        return text


async def container_order(
    worker: "PodWorker", container: Mapping[str, Any], *, identity: str, restart: int
) -> dict[str, Any]:
    """Return the order that starts a container of a pod whose sandbox and volumes are there.

    Raises:
        ConfigError: The container names something that does not exist.
        ApiError: The API server did not answer.
    """
    runtime, pod = worker.runtime, worker.pod
    argv = command_line(container)
    image = container["image"]
    if argv is None:
        raise ConfigError(
            f'image "{image}" is not known here, so nobody knows what it runs: give the container a command',
            reason="CreateContainerError",
        )
    if not stand_in(image).known:
        runtime.events.record(
            pod, "Pulled", f'Image "{image}" is not pulled: the host\'s file system stands in for it'
        )
    environment = await _environment(worker, container)
    annotations = pod["metadata"].get("annotations") or {}
    prepared = order(
        container,
        identity=identity,
        pod=worker.uid,
        argv=argv,
        environment=environment,
        mounts=[
            *network_mounts(runtime.pod_directory(worker.uid)),
            *mounts(container, worker.volumes, environment=environment),
            _termination_mount(worker, container, restart),
        ],
        host=runtime.host,
    )
    if annotations.get(WARM_ANNOTATION) != "false":
        prepared["warm"] = runtime.warm(prepared["argv"], environment)
    return prepared


async def _environment(worker: "PodWorker", container: Mapping[str, Any]) -> dict[str, str]:
    runtime, pod, pool = worker.runtime, worker.pod, worker.pool
    namespace = pod["metadata"]["namespace"]
    configmaps, secrets = references(pod)
    settings = pool.settings
    hostname = pod["spec"].get("hostname") or pod["metadata"]["name"][:63]
    base = base_environment(container, host=runtime.host, hostname=hostname, node_cpus=settings.cpus)
    base |= _gpus(worker, container)
    return container_environment(
        container,
        pod,
        node=runtime.nodes.store.get(
            ("", settings.name), {"status": {"allocatable": settings.allocatable()}}
        ),
        configmaps=await _existing(runtime.objects.configmap, namespace, configmaps),
        secrets=await _existing(runtime.objects.secret, namespace, secrets),
        service_env=service_environment(pod, list(runtime.services.store.values())),
        base=base,
        pod_ips=[worker.address],
        host_ips=[settings.address],
    )


async def _existing(
    read: Callable[[str, str], Awaitable[dict[str, Any] | None]], namespace: str, names: set[str]
) -> dict[str, dict[str, Any]]:
    """Return the objects of these names that are there."""
    found = {name: await read(namespace, name) for name in sorted(names)}
    return {name: value for name, value in found.items() if value is not None}


def _gpus(worker: "PodWorker", container: Mapping[str, Any]) -> dict[str, str]:
    """Give a container the real GPUs that it asked for, and hide the others."""
    count = int((container.get("resources", {}).get("limits") or {}).get("nvidia.com/gpu", 0))
    devices = worker.pool.devices(worker.uid, container["name"], count)
    if devices is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "NVIDIA_VISIBLE_DEVICES": ",".join(devices) or "void"}


def _termination_mount(worker: "PodWorker", container: Mapping[str, Any], restart: int) -> dict[str, Any]:
    path = worker.runtime.termination_path(worker.uid, container["name"], restart)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    target = container.get("terminationMessagePath") or TERMINATION_PATH
    return {"kind": "bind", "source": str(path), "target": target}


def _head(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_output(path: Path) -> str:
    """Return the last 2048 bytes of what a container wrote, without the log's own columns."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * FALLBACK_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return ""
    texts = [line.split(b" ", 3)[3] for line in lines if line.count(b" ") >= 3]
    return b"\n".join(texts)[-FALLBACK_BYTES:].decode(errors="replace")
