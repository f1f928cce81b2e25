"""The specification of a container, in the field names of the OCI runtime specification.

The kubelet builds one for each start of a container and sends it once, as JSON; nothing changes it later.
What the OCI specification has no field for is in ``StartRequest``. Standard library only.

Source: https://github.com/opencontainers/runtime-spec/blob/main/config.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The directories that are private to each container: its writable layer.
SCRATCH = ("/tmp", "/run", "/var/tmp")


@dataclass(frozen=True)
class UserSpec:
    """The ids of a process, as its container sees them."""

    uid: int = 0
    gid: int = 0
    additional_gids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProcessSpec:
    """The container's first process.

    Attributes:
        env: ``NAME=value`` each.
        cwd: The working directory, created if it is missing.
        terminal: Give it a terminal in place of pipes.
        capabilities: The only ones it keeps; None keeps those of the caller.
        user: Its ids; in a user namespace of a single id, that id has these numbers.
        no_new_privileges: Set-user-ID bits and file capabilities of executed programs have no effect.
        oom_score_adj: The OOM killer ends the processes with the highest score first.
    """

    args: tuple[str, ...]
    env: tuple[str, ...]
    cwd: str = "/"
    terminal: bool = False
    capabilities: tuple[str, ...] | None = None
    user: UserSpec = UserSpec()
    no_new_privileges: bool = True
    oom_score_adj: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.env)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "ProcessSpec":
        user = UserSpec(**_with_tuples(raw["user"])) if "user" in raw else UserSpec()
        return cls(**_with_tuples(raw) | {"args": tuple(raw["args"]), "user": user})


@dataclass(frozen=True)
class RootSpec:
    """The root file system.

    Attributes:
        path: The directory of the layers. Without layers, the root is a view of this directory, read-only
            except for the mounts; or, if it is the container's ``own``, the directory itself.
        readonly: Only mounts are writable.
        layers: Names of an image's layers in ``path``, the lowest first, in the format of overlayfs.
        writable: A directory for overlayfs's upper and work directories.
    """

    path: str = "/"
    readonly: bool = False
    layers: tuple[str, ...] = ()
    writable: str = ""
    own: bool = False

    @property
    def of_image(self) -> bool:
        """Whether the root is an image's, and not the host's."""
        return bool(self.layers) or self.own


@dataclass(frozen=True)
class MountSpec:
    """A mount; later ones cover earlier ones.

    Attributes:
        destination: The absolute path in the container.
        type: ``bind``, ``tmpfs``, ``overlay`` for an image, whose layers are in the source, with the options
            ``lowerdir=…``, or ``merged``: the host's directory laid over the source, read-only.
        source: The source on the host, for a bind mount.
        options: Options of mount(8): ``ro``, and ``rro`` for what is mounted below it as well; for tmpfs
            ``mode=…`` and ``size=…``. With ``idmap`` the owners of the files of a bind mount are shifted by
            the container's id mapping, where the file system can do it. One is this runtime's own, for bind
            mounts: with ``masked`` the container's masked paths are covered in the mount as well.
        subpaths: The path below the source to mount, in parts; a symlink may not lead out of its part.
    """

    destination: str
    type: str = "bind"
    source: str = ""
    options: tuple[str, ...] = ()
    subpaths: tuple[str, ...] = ()

    @property
    def readonly(self) -> bool:
        return "ro" in self.options


@dataclass(frozen=True)
class LinuxIdMapping:
    """The users and groups of a container's user namespace: ``size`` of them, ``host_id`` is its root.

    By default its root is the runtime's own user, and there are no others.
    """

    container_id: int = 0
    host_id: int = 0
    size: int = 1


@dataclass(frozen=True)
class LinuxSpec:
    """The part of the specification that only Linux has.

    Attributes:
        namespaces: The namespaces created for this container; it shares all others with its pod.
        id_mapping: The mapping of the pod's user namespace, for users and groups alike.
        devices: Paths of device nodes that are bound from the host.
        cpus: The cores that the container may use (``resources.cpu.cpus``), as in ``0,2``; empty for all.
        cgroups_path: For each hierarchy, the file of the container's cgroup to which a process with one
            thread writes to enter it.
        masked_paths: Directories that are covered by empty ones.
        masked_inodes: The inode of each masked path, as ``device:inode``.
        seccomp: The filter of its system calls, a classic BPF program in base64; empty for none.
    """

    namespaces: tuple[str, ...] = ("mount", "pid")
    id_mapping: LinuxIdMapping = LinuxIdMapping()
    devices: tuple[str, ...] = ()
    cpus: str = ""
    cgroups_path: tuple[str, ...] = ()
    masked_paths: tuple[str, ...] = ()
    masked_inodes: tuple[str, ...] = ()
    seccomp: str = ""


@dataclass(frozen=True)
class ContainerSpec:
    """A container: everything that decides what its first process sees and may do."""

    process: ProcessSpec
    root: RootSpec = RootSpec()
    mounts: tuple[MountSpec, ...] = ()
    hostname: str = ""
    linux: LinuxSpec = LinuxSpec()

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "ContainerSpec":
        linux = _with_tuples(raw["linux"])
        return cls(
            process=ProcessSpec.from_dict(raw["process"]),
            root=RootSpec(**_with_tuples(raw["root"])),
            mounts=tuple(MountSpec(**_with_tuples(mount)) for mount in raw["mounts"]),
            hostname=raw["hostname"],
            linux=LinuxSpec(**linux | {"id_mapping": LinuxIdMapping(**linux["id_mapping"])}),
        )


@dataclass(frozen=True)
class PlainPod:
    """Plain mode's replacement for namespaces and mounts.

    Attributes:
        description: The file that describes the pod to the preload library.
        cwd: The real working directory.
        paths: Pairs of a path in the pod and the real one.
    """

    description: str
    cwd: str
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StartRequest:
    """A request to start a container.

    Attributes:
        stdin: Give it a pipe as standard input in place of /dev/null.
        fork_plan: How the forkserver can start it (``forkserver.command.ForkPlan``), if it can.
        plain: The pod's description and paths in plain mode.
        target: The container of the pod whose PID namespace it enters, if it has none of its own.
    """

    spec: ContainerSpec
    stdin: bool = False
    fork_plan: Mapping[str, Any] | None = None
    plain: PlainPod | None = None
    target: str = ""

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "StartRequest":
        plain = PlainPod(**raw["plain"]) if raw["plain"] else None
        spec = ContainerSpec.from_dict(raw["spec"])
        return cls(spec, raw["stdin"], raw["fork_plan"], plain, raw["target"])


def _with_tuples(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
