"""Build the specification of a container from its pod: command, environment, mounts, limits.

Everything that a container's start depends on comes together in ``start_request``; the runtime carries it out
(``runtime/container.py``).
"""

import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
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
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.pods.image_pull import pull
from localkube.kubelet.quantity import parse
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.volumes.volume_manager import MountedVolume, mounts
from localkube.runtime.container_spec import (
    SCRATCH,
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
    target: str = "",
) -> StartRequest:
    """Build the request that starts a container of a pod whose sandbox and volumes are ready.

    Args:
        pool: The node's addresses and devices.
        restart: The number of this start, from 0.
        previous: Its record so far, for the back-off of its image.
        target: The running container whose processes it shares.

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
            *_writable_mounts(runtime, uid, runtime.writable_layer(uid, name, restart)),
            *root_mounts(runtime.environment, runtime.covered),
            *_network_mounts(runtime, uid),
            *mounts(container, volumes, environment=environment, private=runtime.hide),
            _termination_mount(runtime, uid, container, restart),
        ),
        hostname=hostname,
        linux=_linux(runtime, pod, container, pool, identity=f"{uid}.{name}.{restart}", target=target),
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
    return StartRequest(spec, bool(container.get("stdin")), fork_plan, plain, target)


def _linux(
    runtime: Runtime,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    pool: NodePool,
    *,
    identity: str,
    target: str,
) -> LinuxSpec:
    first_core = pool.settings.first_core
    groups, cores = runtime.limits.apply(container, identity=identity, first_core=first_core, pod=pod)
    shares = target or pod["spec"].get("shareProcessNamespace")
    return LinuxSpec(
        namespaces=("mount",) if shares else ("mount", "pid"),
        id_mapping=runtime.ids.of(pod["metadata"]["uid"]),
        devices=devices(),
        resources=LinuxResources(LinuxCpu(",".join(map(str, cores)))),
        cgroups_path=tuple(groups),
        masked_paths=runtime.hide,
        seccomp=runtime.seccomp,
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


def root_mounts(environment: Iterable[str], covered: Iterable[str] = ()) -> list[MountSpec]:
    """Every container's shared memory, and what it sees of the directories that are covered.

    Args:
        environment: Directories of the host; readable by the container even if they are closed to others.
        covered: Directories whose other content no container sees; none in plain mode.
    """
    shared_memory = ("mode=1777", f"size={SHARED_MEMORY_BYTES}")
    scratch = tuple(directory + "/" for directory in SCRATCH)
    covered = [place for place in covered if not place.startswith(scratch)]
    environment = [place for place in environment if covered or place.startswith(scratch)]
    shown = [MountSpec(place, source=place, options=("ro", "idmap", "masked")) for place in environment]
    shown += [MountSpec(place, "tmpfs", options=("mode=755", "size=1m", "ro")) for place in covered]
    return [
        MountSpec("/dev/shm", "tmpfs", options=shared_memory),
        *sorted(shown, key=lambda mount: mount.destination),
    ]


def _writable_mounts(runtime: Runtime, uid: str, layer: Path) -> list[MountSpec]:
    """Make a container's own directories, empty for each run, on the disk that its pod's limit counts."""
    made = []
    for place in SCRATCH:
        directory = layer / place.strip("/").replace("/", "-")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o1777)
        runtime.ids.give(directory, uid)
        made.append(MountSpec(place, source=str(directory)))
    return made


def _network_mounts(runtime: Runtime, uid: str) -> list[MountSpec]:
    directory = runtime.network_files(uid)
    return [
        MountSpec(f"/etc/{name}", source=str(directory / name))
        for name in ("hosts", "hostname", "resolv.conf")
    ]


def _termination_mount(runtime: Runtime, uid: str, container: Mapping[str, Any], restart: int) -> MountSpec:
    path = runtime.termination_path(uid, container["name"], restart)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    runtime.ids.give(path, uid)
    return MountSpec(container.get("terminationMessagePath") or TERMINATION_PATH, source=str(path))
