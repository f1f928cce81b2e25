"""Build the specification of a container from its pod: command, environment, mounts, limits.

Everything that a container's start depends on comes together in ``start_request``; the runtime carries it out
(``runtime/container.py``).
"""

import math
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from localkube.kubelet.containers.environment import (
    ConfigError,
    container_environment,
    expand,
    references,
    service_environment,
)
from localkube.kubelet.images.image_programs import Program
from localkube.kubelet.images.image_table import command_line, stand_in
from localkube.kubelet.nodes.node import NodePool
from localkube.kubelet.pods.context import SCRATCH, Runtime
from localkube.kubelet.pods.image_pull import program_mounts, pull
from localkube.kubelet.quantity import parse
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.volumes.volume_manager import MountedVolume, mounts
from localkube.runtime.container_spec import (
    ContainerSpec,
    LinuxCpu,
    LinuxResources,
    LinuxSpec,
    MountSpec,
    ProcessSpec,
    RootSpec,
    StartRequest,
)
from localkube.runtime.forkserver.command import plan
from localkube.runtime.syscalls import CAPABILITIES

WARM_ANNOTATION = "trainyard/warm-start"
TERMINATION_PATH = "/dev/termination-log"
SHARED_MEMORY_BYTES = 64 * 1024 * 1024
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "dri", "infiniband", "kfd")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/tmp"


async def start_request(
    runtime: Runtime,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    pool: NodePool,
    address: str,
    volumes: Mapping[str, MountedVolume],
    restart: int,
    previous: ContainerRecord | None,
) -> StartRequest:
    """Build the request that starts a container of a pod whose sandbox and volumes are ready.

    Args:
        pool: The node's addresses and devices.
        restart: The number of this start, from 0.
        previous: Its record so far, for the back-off of its image.

    Raises:
        ConfigError: The container names something that does not exist, its image among them.
        VolumeError: A volume cannot be mounted as it says.
        ApiError: The API server did not answer.
    """
    meta, uid, name = pod["metadata"], pod["metadata"]["uid"], container["name"]
    hostname = pod["spec"].get("hostname") or meta["name"][:63]
    program = pull(runtime, pod, container, previous)
    argv = _argv(container, program)
    environment = await _environment(runtime, pod, container, pool, address, hostname, program)
    process = _process(container, argv, environment)
    spec = ContainerSpec(
        process=process,
        root=RootSpec(readonly=bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))),
        mounts=(
            *root_mounts(),
            *_network_mounts(runtime, uid),
            *program_mounts(program),
            *mounts(container, volumes, environment=environment, private=runtime.hide),
            _termination_mount(runtime, uid, container, restart),
        ),
        hostname=hostname,
        linux=_linux(runtime, pod, container, pool, identity=f"{uid}.{name}.{restart}"),
    )
    fork_plan = plain = None
    if runtime.forkserver and (meta.get("annotations") or {}).get(WARM_ANNOTATION) != "false":
        fork_plan = plan(process.args, environment, python=sys.executable, path=environment.get("PATH", ""))
    if runtime.plain:
        spec, plain = runtime.plain.adapt(
            spec,
            directory=runtime.pods / uid / "plain" / f"{name}.{restart}",
            address=address,
            namespace=meta["namespace"],
            warn=lambda text: runtime.events.record(pod, "UnsupportedFields", text, warning=True),
        )
    return StartRequest(spec, bool(container.get("stdin")), fork_plan, plain)


def _linux(
    runtime: Runtime, pod: Mapping[str, Any], container: Mapping[str, Any], pool: NodePool, *, identity: str
) -> LinuxSpec:
    first_core = int(pool.settings.index * pool.settings.cpus)
    groups, cores = runtime.limits.apply(container, identity=identity, first_core=first_core)
    return LinuxSpec(
        namespaces=("mount",) if pod["spec"].get("shareProcessNamespace") else ("mount", "pid"),
        devices=devices(),
        resources=LinuxResources(LinuxCpu(",".join(map(str, cores)))),
        cgroups_path=tuple(groups),
        masked_paths=runtime.hide,
    )


def _argv(container: Mapping[str, Any], program: Program) -> list[str]:
    """The command of container and image, before the expansion of ``$(VAR)``."""
    argv = command_line(container, program.argv)
    if argv is None:
        raise ConfigError(
            f'image "{container["image"]}" is not known here, so nobody knows what it runs: '
            "give the container a command",
            reason="CreateContainerError",
        )
    return argv


def _process(container: Mapping[str, Any], argv: list[str], environment: Mapping[str, str]) -> ProcessSpec:
    return ProcessSpec(
        args=tuple(expand(word, environment) for word in argv),
        env=tuple(f"{name}={value}" for name, value in environment.items()),
        cwd=container.get("workingDir") or stand_in(container["image"]).directory,
        terminal=bool(container.get("tty")),
        capabilities=tuple(CAPABILITIES),
    )


async def _environment(
    runtime: Runtime,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    pool: NodePool,
    address: str,
    hostname: str,
    program: Program,
) -> dict[str, str]:
    namespace, settings = pod["metadata"]["namespace"], pool.settings
    configmaps, secrets = references(pod)
    base = {
        "PATH": ":".join(filter(None, (program.directory, os.path.dirname(sys.executable), SYSTEM_PATH))),
        "HOME": HOME,
        "HOSTNAME": hostname,
        "LANG": "C.UTF-8",
        **({"TERM": "xterm"} if container.get("tty") else {}),
        **dict.fromkeys(THREAD_VARIABLES, str(_threads(container, settings.cpus))),
        **stand_in(container["image"]).env,
        **_gpus(pod, container, pool),
    }
    node = {"status": {"allocatable": settings.allocatable()}}
    return container_environment(
        container,
        pod,
        node=runtime.nodes.store.get(("", settings.name), node),
        configmaps=await _existing(runtime.objects.configmap, namespace, configmaps),
        secrets=await _existing(runtime.objects.secret, namespace, secrets),
        service_env=service_environment(pod, list(runtime.services.store.values())),
        base=base,
        pod_ips=[address],
        host_ips=[settings.address],
    )


async def _existing(
    read: Callable[[str, str], Awaitable[dict[str, Any] | None]], namespace: str, names: set[str]
) -> dict[str, dict[str, Any]]:
    found = {name: await read(namespace, name) for name in sorted(names)}
    return {name: value for name, value in found.items() if value is not None}


def _threads(container: Mapping[str, Any], node_cpus: float) -> int:
    """The number of threads for OpenMP and MKL: the CPU limit, rounded up."""
    limit = container.get("resources", {}).get("limits", {}).get("cpu")
    return max(1, math.ceil(float(parse(limit)) if limit else node_cpus))


def _gpus(pod: Mapping[str, Any], container: Mapping[str, Any], pool: NodePool) -> dict[str, str]:
    """Give a container the real GPUs that it asked for, and hide the others."""
    count = int((container.get("resources", {}).get("limits") or {}).get("nvidia.com/gpu", 0))
    found = pool.devices(pod["metadata"]["uid"], container["name"], count)
    if found is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(found), "NVIDIA_VISIBLE_DEVICES": ",".join(found) or "void"}


def devices() -> tuple[str, ...]:
    """The device nodes that every container gets, graphics cards among them."""
    graphics = [name for name in os.listdir("/dev") if name.startswith("nvidia")]
    return tuple(f"/dev/{name}" for name in (*DEVICES, *graphics))


def root_mounts() -> list[MountSpec]:
    """Every container's writable directories, and the kit's Python where one of them would hide it."""
    shared_memory = ("mode=1777", f"size={SHARED_MEMORY_BYTES}")
    made = [MountSpec(directory, "tmpfs", options=("mode=1777",)) for directory in SCRATCH]
    made.append(MountSpec("/dev/shm", "tmpfs", options=shared_memory))
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    for prefix in sorted(prefixes):
        if any(prefix.startswith(directory + "/") for directory in SCRATCH):
            made.append(MountSpec(prefix, source=prefix, options=("ro",)))
    return made


def _network_mounts(runtime: Runtime, uid: str) -> list[MountSpec]:
    directory = runtime.tmpfs_directory(uid)
    return [
        MountSpec(f"/etc/{name}", source=str(directory / name))
        for name in ("hosts", "hostname", "resolv.conf")
    ]


def _termination_mount(runtime: Runtime, uid: str, container: Mapping[str, Any], restart: int) -> MountSpec:
    path = runtime.termination_path(uid, container["name"], restart)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    return MountSpec(container.get("terminationMessagePath") or TERMINATION_PATH, source=str(path))
