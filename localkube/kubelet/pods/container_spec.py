"""Build the specification of a container from its pod: command, environment, mounts, limits.

Everything that a container's start depends on comes together in ``ContainerStart``; the runtime carries it
out (``runtime/container.py``).
"""

import contextlib
import functools
import math
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localkube.kubelet.containers import security_context
from localkube.kubelet.containers.environment import (
    container_environment,
    env_files,
    references,
    service_environment,
)
from localkube.kubelet.containers.expansion import ArgumentSpace, ConfigError, expand_words, too_long
from localkube.kubelet.images.container_image import ResolvedImage
from localkube.kubelet.images.image_programs import torchrun_directory
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.plugins.cdi import ContainerEdits, container_edits
from localkube.kubelet.plugins.rpc import PluginError
from localkube.kubelet.pods import network_files
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.gpus import device_nodes, device_paths, manages_gpus
from localkube.kubelet.resources.oom_score import oom_score
from localkube.kubelet.volumes import host_path
from localkube.kubelet.volumes.volume_manager import MountedVolume, mounts
from localkube.kubelet.work_pools import OBJECTS, TEXTS
from localkube.runtime.container_spec import (
    SCRATCH,
    ContainerSpec,
    LinuxSpec,
    MountSpec,
    PlainPod,
    ProcessSpec,
    RootSpec,
    StartRequest,
    UserSpec,
)
from localkube.runtime.forkserver.command import OPENMP_ENVIRONMENT, ForkPlan, cold_command, plan
from localkube.runtime.path_resolution import Resolution, opened

WARM_ANNOTATION = "trainyard/warm-start"
TERMINATION_PATH = "/dev/termination-log"
SHARED_MEMORY_BYTES = 64 * 1024 * 1024
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "dri", "infiniband", "kfd")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/tmp"
FEW_VARIABLES = 64  # declared ones and Services: a container whose variables are computed at once
MAX_KEYS = 1 << 17  # of the objects that a container's variables name: they are in memory at a time
TORCHRUN_AT = "/torchrun"  # and an interpreter's torchrun, where the cache has it
APPLETS_AT = "/busybox"  # where every user of a container finds what stands in for BusyBox's programs
ENV_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class ContainerStart:
    """One start of a container, in a pod whose sandbox and volumes are ready.

    Attributes:
        address: The pod's address.
        restart: The number of this start, from 0.
        target: The running container whose processes it shares; empty for its own.
    """

    runtime: ContainerRuntime
    pod: Mapping[str, Any]
    container: Mapping[str, Any]
    node: VirtualNode
    address: str
    volumes: Mapping[str, MountedVolume]
    restart: int
    target: str = ""

    @property
    def uid(self) -> str:
        return self.pod["metadata"]["uid"]

    @property
    def name(self) -> str:
        return self.container["name"]

    @property
    def layer(self) -> Path:
        """The directory with what this run writes outside of volumes."""
        return self.runtime.files.writable_layer(self.uid, self.name, self.restart)

    async def request(self) -> tuple[StartRequest, ResolvedImage]:
        """Build the request to the runtime.

        Raises:
            ConfigError: The container names something that does not exist, its image among them.
            VolumeError: A volume cannot be mounted as it says.
            ApiError: The API server did not answer.
        """
        runtime, container = self.runtime, self.container
        hostname, _ = network_files.hostname(self.pod, node=self.node.settings.name)
        security_context.refuse_profiles(self.pod, container)
        image = await runtime.images.get(self.pod, container, used_by=self.layer)
        image, applets = self._with_applets(image)
        grant = await self._devices()
        user = self._user(image)
        declared = {**grant.env, **await self._declared()}
        environment = self._base_environment(hostname, image, user) | declared
        path = runtime.host.config.variables.get("PYTHONPATH")
        if path and not image.layers and "PYTHONPATH" in declared:
            environment["PYTHONPATH"] += f":{path}"
        process, fork_plan = self._warm_start(
            image, _process(_expanded(container, declared), image, environment, user)
        )
        score = oom_score(self.pod, container, memory=self.node.settings.memory)
        spec = ContainerSpec(
            process=replace(process, oom_score_adj=score),
            root=self._root(image),
            mounts=(
                *([_shared_memory()] if image.layers else self._host_mounts()),
                *self._network_mounts(),
                *([MountSpec(image.directory, source=image.files, options=("ro",))] if image.files else ()),
                *applets,
                *mounts(container, self.volumes, environment=declared, hidden=runtime.host.hide.identities),
                *self._device_mounts(grant),
                self._termination_mount(),
            ),
            hostname=hostname,
            linux=self._linux(),
        )
        spec, plain = self._adapted(spec)
        return StartRequest(spec, bool(container.get("stdin")), fork_plan, plain, self.target), image

    def _with_applets(self, image: ResolvedImage) -> tuple[ResolvedImage, tuple[MountSpec, ...]]:
        """Show the programs of a small image where every user may enter; the cache is for its owner alone."""
        if not image.program_directory or image.program or self.runtime.host.plain:
            return image, ()
        source = image.program_directory
        places = {*map(os.path.realpath, SYSTEM_PATH.split(":")[2:])} if self.runtime.images.overlay else ()
        merged = [MountSpec(place, "merged", source) for place in sorted(places) if os.path.isdir(place)]
        mounts = (MountSpec(APPLETS_AT, source=source, options=("ro",)), *merged)  # also by paths: /bin/ash
        return replace(image, program_directory=APPLETS_AT), mounts

    def _adapted(self, spec: ContainerSpec) -> tuple[ContainerSpec, PlainPod | None]:
        if not self.runtime.host.plain:
            return spec, None
        return self.runtime.host.plain.adapt(
            spec,
            directory=self.runtime.files.pods / self.uid / "plain" / f"{self.name}.{self.restart}",
            address=self.address,
            namespace=self.pod["metadata"]["namespace"],
            warn=self._warn,
        )

    def _warn(self, text: str) -> None:
        self.node.events.record(self.pod, "UnsupportedFields", text, warning=True)

    def _user(self, image: ResolvedImage) -> UserSpec:
        runtime, pod, container = self.runtime, self.pod, self.container
        if not image.program:
            user = security_context.user(pod, container, image_user=image.user, read=image.read)
            security_context.refuse_foreign_ids((user.uid, *user.additional_gids), size=runtime.ids.size)
            return user
        security_context.refuse_root(pod, container, image_user=image.user)
        # What stands in for an image's program is in the user's cache, which is closed to other users.
        fields = ("runAsUser", "runAsNonRoot")
        ignored = [field for field in fields if security_context.effective(pod, container, field)]
        if ignored and not runtime.host.plain:
            program = f'the program that stands in for image "{image.name}" runs as root'
            self._warn(f"{ignored[0]} has no effect: {program}")
        return UserSpec()

    def _warm_start(self, image: ResolvedImage, process: ProcessSpec) -> tuple[ProcessSpec, ForkPlan | None]:
        """Plan the container's start by the fork server, and the command for a cold start."""
        environment = process.environment
        if image.layers or process.terminal:
            return process, None
        fork_plan = plan(process.args, environment, python=sys.executable, path=environment.get("PATH", ""))
        if fork_plan is None:
            return process, None
        volumes_at = [mount["mountPath"] for mount in self.container.get("volumeMounts") or ()]
        process = replace(process, args=tuple(cold_command(fork_plan, mounts=volumes_at)))
        may_be_warm = (self.pod["metadata"].get("annotations") or {}).get(WARM_ANNOTATION) != "false"
        return process, fork_plan if self.runtime.host.config.forkserver and may_be_warm else None

    async def _devices(self) -> ContainerEdits:
        try:
            grant = await self.node.pool.devices.grant(self.pod, self.container)
            claims = self.node.pool.claims
            claimed = claims.cdi_devices(self.pod, self.container)
            grant.extend(container_edits(claimed, self.node.pool.directory.cdi))
            grant.extend(self.node.pool.gpu_driver.grant(claims.gpus(self.pod, self.container)))
        except PluginError as error:
            raise ConfigError(str(error)) from error
        return grant

    def _device_mounts(self, grant: ContainerEdits) -> Iterable[MountSpec]:
        """Build the mounts that a plugin requests; it may mount no more of the machine than a hostPath."""
        for destination, path, readonly in grant.mounts:
            resolved = self.node.pool.directory.resolve(path)
            root, subpaths = (str(resolved[0]), tuple(resolved[1:])) if resolved else (path, ())
            try:
                if resolved:
                    host_path.check(resolved[1], "", beneath=resolved[0])
                else:
                    host_path.check(path, "", hidden=self.runtime.host.hide)
            except (OSError, ConfigError) as error:
                raise ConfigError(f"device mount {path}: {error}", reason="CreateContainerError") from error
            options = ["ro"] if readonly else []
            options += ["idmap"] if self.runtime.ids.idmap else []
            options += [] if subpaths else ["masked"]
            yield MountSpec(destination, "bind", root, tuple(options), subpaths)

    def _linux(self) -> LinuxSpec:
        runtime, pod, container = self.runtime, self.pod, self.container
        groups, cores = runtime.limits.apply(
            container,
            identity=f"{self.uid}.{self.name}.{self.restart}",
            first_core=self.node.settings.first_core,
            pod=pod,
        )
        hidden = runtime.host.hide.places()
        shares = self.target or pod["spec"].get("shareProcessNamespace")
        shares = shares or "pid" in runtime.ids.shared_with_node(pod)
        privileged = (container.get("securityContext") or {}).get("privileged")
        return LinuxSpec(
            namespaces=("mount",) if shares else ("mount", "pid"),
            id_mapping=runtime.ids.of(self.uid),
            devices=(*(f"/dev/{name}" for name in DEVICES), *self._gpu_nodes()),
            cpus=",".join(map(str, cores)),
            cgroups_path=tuple(groups),
            masked_paths=tuple(path for path, _ in hidden),
            masked_inodes=tuple(f"{device}:{inode}" for _, (device, inode) in hidden),
            seccomp="" if privileged else runtime.host.config.seccomp,
        )

    def _root(self, image: ResolvedImage) -> RootSpec:
        readonly = bool((self.container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
        if not image.layers:
            return RootSpec(readonly=readonly)
        if image.copy:
            return RootSpec(str(image.copy), readonly, own=True)
        layer = self.layer
        for name in ("upper", "work"):
            (layer / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.runtime.ids.chown_to_pod(layer / name, self.uid)
        # The writable layer's own mode is that of the root directory.
        (layer / "upper").chmod(stat.S_IMODE((image.store / image.layers[-1]).stat().st_mode))
        return RootSpec(str(image.store), readonly, image.layers, str(layer))

    async def _declared(self) -> dict[str, str]:
        """Build the variables that the pod declares, and those of Services."""
        runtime, pod, settings = self.runtime, self.pod, self.node.settings
        (configmaps, secrets), files = references(self.container), env_files(self.container)
        async with OBJECTS.turn() if configmaps or secrets else contextlib.nullcontext():
            existing = {
                "configmaps": await _existing(runtime.objects.configmap, pod, configmaps),
                "secrets": await _existing(runtime.objects.secret, pod, secrets),
            }
            services = list(runtime.services.store.values())

            def declare() -> dict[str, str]:
                return container_environment(
                    self.container,
                    pod,
                    node=self.node.object or {"status": {"allocatable": settings.allocatable()}},
                    service_env=service_environment(pod, services),
                    files=_read_env_files(self.container, self.volumes),
                    pod_ips=[self.address],
                    host_ips=[settings.address],
                    **existing,
                )

            is_short = len(self.container.get("env") or ()) + len(services) <= FEW_VARIABLES
            if is_short and not existing["configmaps"] and not existing["secrets"] and not files:
                return declare()
            return await TEXTS.call(declare)

    def _base_environment(self, hostname: str, image: ResolvedImage, user: UserSpec) -> dict[str, str]:
        """Build the variables of the image and of the runtime."""
        if image.layers:
            base = {"HOME": security_context.home_directory(user.uid, image.read)}
        else:
            torchrun = torchrun_directory()
            if torchrun and not self.runtime.host.plain:
                torchrun = TORCHRUN_AT
            places = (image.program_directory, os.path.dirname(sys.executable), torchrun, SYSTEM_PATH)
            base = _host_environment(self.container, self.node.settings.cpus, places)
            base |= self.runtime.host.config.variables
        terminal = {"TERM": "xterm"} if self.container.get("tty") else {}
        return base | {"HOSTNAME": hostname} | terminal | dict(image.env or {}) | self._gpus()

    def _gpus(self) -> dict[str, str]:
        """Show the container the real GPUs that it requests, and hide the others."""
        gpus = self._allocated_gpus()
        if gpus is None:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "NVIDIA_VISIBLE_DEVICES": ",".join(gpus) or "void"}

    def _allocated_gpus(self) -> list[str] | None:
        """List the container's real GPUs by UUID; None if GPUs are only declared, or a plugin has them."""
        limits, pool = self.container.get("resources", {}).get("limits") or {}, self.node.pool
        count = int(limits.get("nvidia.com/gpu", 0))
        claimed = pool.gpu_driver.uuids(pool.claims.gpus(self.pod, self.container))
        gpus = pool.gpus(self.uid, self.name, count, claimed=claimed)
        return [] if gpus is None and not count and device_paths() else gpus

    def _gpu_nodes(self) -> list[str]:
        """List the device nodes of the container's GPUs, or of all GPUs for a container that manages them."""
        gpus = None if manages_gpus(self.pod, self.container) else self._allocated_gpus()
        return device_nodes(gpus, paths=device_paths(), names=os.listdir("/dev"))

    def _host_mounts(self) -> list[MountSpec]:
        """Create the container's directories, empty for each run, on the disk that the pod's limit covers."""
        mounts, host, layer = [], self.runtime.host, self.layer
        layer.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in SCRATCH:
            directory = layer / place.strip("/").replace("/", "-")
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o1777)
            self.runtime.ids.chown_to_pod(directory, self.uid)
            mounts.append(MountSpec(place, source=str(directory)))
        hidden = [path for path, _ in host.hide.places()]
        config = host.config
        shown = root_mounts(config.environment, config.covered, sources=config.sources, hidden=hidden)
        packages = package_mounts(config.packages, [*config.environment, *config.packages])
        shown = sorted([*shown, *packages], key=lambda mount: mount.destination)
        if (torchrun := torchrun_directory()) and not host.plain:
            mounts.append(MountSpec(TORCHRUN_AT, source=torchrun, options=("ro",)))
        return [*mounts, _shared_memory(), *shown]

    def _network_mounts(self) -> list[MountSpec]:
        directory = self.runtime.files.network_files(self.uid)
        return [
            MountSpec(f"/etc/{name}", source=str(directory / name))
            for name in ("hosts", "hostname", "resolv.conf")
        ]

    def _termination_mount(self) -> MountSpec:
        path = self.runtime.files.termination_path(self.uid, self.name, self.restart)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)  # for whichever user the container runs as
        self.runtime.ids.chown_to_pod(path, self.uid)
        return MountSpec(self.container.get("terminationMessagePath") or TERMINATION_PATH, source=str(path))


def _process(
    container: Mapping[str, Any], image: ResolvedImage, environment: Mapping[str, str], user: UserSpec
) -> ProcessSpec:
    argv = image.command_line(container)
    if argv is None:
        raise ConfigError("no command specified", reason="CreateContainerError")
    return ProcessSpec(
        args=tuple(argv),
        env=tuple(f"{name}={value}" for name, value in environment.items()),
        cwd=container.get("workingDir") or image.directory,
        terminal=bool(container.get("tty")),
        capabilities=security_context.capabilities(container),
        user=user,
        # The host's own files give no privileges in a container.
        no_new_privileges=not image.layers or security_context.no_new_privileges(container),
    )


def _expanded(container: Mapping[str, Any], declared: Mapping[str, str]) -> dict[str, Any]:
    """Expand command and arguments; those of an image stay as they are."""
    space = ArgumentSpace()
    for name, value in declared.items():
        space.add(f"environment variable {name}", name, "=", value)
    words = {
        name: expand_words(container.get(name) or (), declared, space, what=name)
        for name in ("command", "args")
    }
    return {**container, **words}


def _read_env_files(
    container: Mapping[str, Any], volumes: Mapping[str, MountedVolume]
) -> dict[tuple[str, str], bytes]:
    """Read files of variables, as far as each can be read; a pod may have put anything there."""
    contents = {}
    for volume, path in env_files(container):
        with contextlib.suppress(OSError), opened(volumes[volume].source) as root:
            place = Resolution(in_root=True).open(root, path)
            try:
                file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            finally:
                os.close(place)
            with os.fdopen(file, "rb") as stream:
                status = os.fstat(file)
                if stat.S_ISREG(status.st_mode) and status.st_size <= ENV_FILE_BYTES:
                    contents[volume, path] = stream.read(ENV_FILE_BYTES)
    return contents


def _host_environment(
    container: Mapping[str, Any], node_cpus: float, places: Iterable[str]
) -> dict[str, str]:
    """The variables of a container that runs on the host's file system, with its programs in these places."""
    return {
        "PATH": ":".join(filter(None, places)),
        "HOME": HOME,
        "LANG": "C.UTF-8",
        **dict.fromkeys(THREAD_VARIABLES, str(_threads(container, node_cpus))),
        **OPENMP_ENVIRONMENT,
    }


async def _existing(
    read: Callable[[Any, str], Awaitable[dict[str, Any] | None]], pod: Mapping[str, Any], names: set[str]
) -> dict[str, dict[str, Any]]:
    objects, keys = {}, 0
    for name in sorted(names):
        if (item := await read(pod, name)) is not None:
            objects[name], keys = item, keys + len(item.get("data") or ())
            if keys > MAX_KEYS:
                raise too_long(f"environment from {name}", f"more than {MAX_KEYS} keys are named")
    return objects


def _threads(container: Mapping[str, Any], node_cpus: float) -> int:
    """Compute the number of threads for OpenMP and MKL: the CPU limit, rounded up."""
    limit = container.get("resources", {}).get("limits", {}).get("cpu")
    return max(1, math.ceil(float(parse(limit)) if limit else node_cpus))


def root_mounts(
    environment: Iterable[str],
    covered: Iterable[str] = (),
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
    hidden: Iterable[str] = (),
) -> list[MountSpec]:
    """Build the mounts that show containers on the host's file system parts of covered directories.

    Args:
        environment: Directories of the host; readable by the container even if they are closed to others.
        covered: Directories whose other content no container sees; none in plain mode.
        sources: What is shown in the place of some of them.
        hidden: Directories that are covered in the former.
    """
    scratch = tuple(directory + "/" for directory in SCRATCH)
    covered = [place for place in covered if not place.startswith(scratch) and place not in sources]
    environment = [place for place in environment if covered or place.startswith(scratch)]
    shown = [MountSpec(place, "tmpfs", options=("mode=755", "size=1m", "ro")) for place in covered]
    for place in environment:
        source = sources.get(place, place)
        masked = ["masked"] if any(path.startswith(f"{source}/") for path in hidden) else []
        shown.append(MountSpec(place, source=source, options=("ro", "idmap", *masked)))
    return sorted(shown, key=lambda mount: mount.destination)


def package_mounts(packages: Iterable[str], shown: Sequence[str]) -> Iterable[MountSpec]:
    """Mount directories and files of packages, and cover what is hidden in them: .git, .env and the like.

    Files that are closed to others stay so, unless their whole directory is.

    Args:
        shown: All that the container sees on the way to which nothing is covered.
    """
    above = _with_parents(tuple(shown))
    for place in packages:
        with contextlib.suppress(OSError):  # it is gone
            mode = os.stat(place).st_mode
            idmap = () if mode & stat.S_IROTH else ("idmap",)
            yield MountSpec(place, source=place, options=("ro", *idmap))
            for entry in os.scandir(place) if stat.S_ISDIR(mode) else ():
                if not entry.name.startswith(".") or entry.is_symlink() or entry.path in above:
                    continue
                if entry.is_dir():
                    yield MountSpec(entry.path, "tmpfs", options=("mode=755", "size=4k", "ro"))
                else:
                    yield MountSpec(entry.path, source="/dev/null", options=("ro",))


@functools.cache
def _with_parents(paths: tuple[str, ...]) -> frozenset[str]:
    return frozenset(str(parent) for path in paths for parent in (Path(path), *Path(path).parents))


def _shared_memory() -> MountSpec:
    return MountSpec("/dev/shm", "tmpfs", options=("mode=1777", f"size={SHARED_MEMORY_BYTES}"))
