"""How the order that starts one container is put together: command, environment, mounts, warm or cold."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from localkube.kubelet.containers.container_spec import base_environment, network_mounts, order
from localkube.kubelet.containers.environment import (
    ConfigError,
    container_environment,
    references,
    service_environment,
)
from localkube.kubelet.images.image_table import command_line
from localkube.kubelet.nodes.node import NodePool
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.pods.image_pull import program_mounts, pull
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.volumes.volume_manager import MountedVolume, mounts

WARM_ANNOTATION = "trainyard/warm-start"
TERMINATION_PATH = "/dev/termination-log"


class LaunchingPod(Protocol):
    """What of a pod its containers' orders are made from."""

    pod: Mapping[str, Any]
    uid: str
    address: str | None
    runtime: Runtime
    pool: NodePool
    volumes: Mapping[str, MountedVolume]
    records: Mapping[str, ContainerRecord]


async def container_order(
    worker: LaunchingPod, container: Mapping[str, Any], *, identity: str, restart: int
) -> dict[str, Any]:
    """Return the order that starts a container of a pod whose sandbox and volumes are there.

    Raises:
        ConfigError: The container names something that does not exist, its image among them.
        ApiError: The API server did not answer.
    """
    runtime, pod = worker.runtime, worker.pod
    program = pull(worker, container)
    argv = command_line(container, program.argv)
    image = container["image"]
    if argv is None:
        raise ConfigError(
            f'image "{image}" is not known here, so nobody knows what it runs: give the container a command',
            reason="CreateContainerError",
        )
    environment = await _environment(worker, container, program.directory)
    annotations = pod["metadata"].get("annotations") or {}
    prepared = order(
        container,
        identity=identity,
        pod=worker.uid,
        argv=argv,
        environment=environment,
        mounts=[
            *network_mounts(runtime.tmpfs_directory(worker.uid)),
            *program_mounts(program),
            *mounts(container, worker.volumes, environment=environment, private=runtime.host.hide),
            _termination_mount(worker, container, restart),
        ],
        host=runtime.host,
    )
    first = int(worker.pool.settings.index * worker.pool.settings.cpus)
    prepared |= runtime.limits.order(container, identity=identity, first_core=first)
    if annotations.get(WARM_ANNOTATION) != "false":
        prepared["warm"] = runtime.fork_plan(prepared["argv"], environment)
    if runtime.plain:
        runtime.plain.translate(
            prepared,
            directory=runtime.pods / worker.uid / "plain" / f"{container['name']}.{restart}",
            address=worker.address,
            hostname=pod["spec"].get("hostname") or pod["metadata"]["name"][:63],
            namespace=pod["metadata"]["namespace"],
            tell=lambda sentence: runtime.events.record(pod, "UnsupportedFields", sentence, warning=True),
        )
    return prepared


async def _environment(worker: LaunchingPod, container: Mapping[str, Any], program: str) -> dict[str, str]:
    runtime, pod, pool = worker.runtime, worker.pod, worker.pool
    namespace = pod["metadata"]["namespace"]
    configmaps, secrets = references(pod)
    settings = pool.settings
    hostname = pod["spec"].get("hostname") or pod["metadata"]["name"][:63]
    base = base_environment(
        container, host=runtime.host, hostname=hostname, node_cpus=settings.cpus, program=program
    )
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


def _gpus(worker: LaunchingPod, container: Mapping[str, Any]) -> dict[str, str]:
    """Give a container the real GPUs that it asked for, and hide the others."""
    count = int((container.get("resources", {}).get("limits") or {}).get("nvidia.com/gpu", 0))
    devices = worker.pool.devices(worker.uid, container["name"], count)
    if devices is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "NVIDIA_VISIBLE_DEVICES": ",".join(devices) or "void"}


def _termination_mount(worker: LaunchingPod, container: Mapping[str, Any], restart: int) -> dict[str, Any]:
    path = worker.runtime.termination_path(worker.uid, container["name"], restart)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    target = container.get("terminationMessagePath") or TERMINATION_PATH
    return {"kind": "bind", "source": str(path), "target": target}
