"""Plain mode's half of the kubelet: a container's mounts and names without namespaces.

A container's specification is built as for namespaces, and then adapted: each mount becomes a line in the
file that the preload library reads, so that programs find volumes, hosts file and scratch directories in
their places. A statically linked program cannot load a library; it gets real paths in its arguments instead,
and an Event says what it does without.
"""

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localkube.network.addresses import LoopbackAddresses
from localkube.runtime.container import find_program
from localkube.runtime.container_spec import SCRATCH, ContainerSpec, MountSpec, PlainPod
from localkube.runtime.path_resolution import location, opened
from localkube.runtime.plain import real_path

NAME_SERVER, API_SERVER = "10.244.0.1", ("10.244.0.1", 6443)
SHARED_MEMORY = "/dev/shm"
TOKEN_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
# The same directory by its older name, which the host's symbolic link says and the pod's own files do not.
OTHER_NAMES = {"/run": "/var/run"}
PROGRAM_INTERPRETER = 3
STATIC_WARNING = (
    "is linked statically: in plain mode it listens on this machine's own addresses where its arguments do "
    "not say 0.0.0.0, sees volumes only where they name them, and knows no names of the cluster"
)
# All of an address's own interfaces, in a listening program's arguments.
_ANY = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])")


@dataclass(frozen=True)
class PlainPods:
    """Adapts specifications of containers to plain mode."""

    addresses: LoopbackAddresses
    preload: Path

    def adapt(
        self,
        spec: ContainerSpec,
        *,
        directory: Path,
        address: str,
        namespace: str,
        warn: Callable[[str], None],
    ) -> tuple[ContainerSpec, PlainPod]:
        """Adapt a specification, and write the pod's description for the preload library.

        Args:
            directory: A directory for only this start of the container; removed with the pod.
            warn: Called with a sentence for what cannot be kept.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = _paths(spec.mounts, directory)
        cwd = spec.process.cwd
        real = real_path(cwd, _pairs(paths))
        if cwd == "/" or not os.path.isdir(real):
            # Many images start in /, which would be this machine's own.
            real = str(directory / "cwd")
            paths |= {} if cwd == "/" else {cwd: (real, False)}
            os.makedirs(real, exist_ok=True)
        pod = PlainPod(str(directory / "pod"), real, _pairs(paths))
        Path(pod.description).write_text(self._describe(paths, address, spec.hostname, namespace))
        process, env = replace(spec.process, capabilities=None), spec.process.environment
        if is_static(real_path(process.args[0], pod.paths), env):
            warn(f"{os.path.basename(process.args[0])} {STATIC_WARNING}")
            args, env = self._adapt_static(process.args, env, paths, directory, address)
        else:
            env["LD_PRELOAD"] = " ".join(filter(None, (str(self.preload), env.get("LD_PRELOAD"))))
            env["TRAINYARD_POD"] = pod.description
            args = process.args
        variables = tuple(f"{name}={value}" for name, value in env.items())
        return replace(spec, process=replace(process, args=args, env=variables)), pod

    def _describe(
        self, paths: Mapping[str, tuple[str, bool]], address: str, hostname: str, namespace: str
    ) -> str:
        """Format the description that ``preload/pod.c`` reads."""
        lines: list[tuple[str, ...]] = [
            ("address", address),
            ("octet", str(self.addresses.octet)),
            ("low", str(self.addresses.low)),
            ("dns", NAME_SERVER),
            ("hostname", hostname),
        ]
        lines += [
            ("search", domain)
            for domain in (f"{namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local")
        ]
        lines += [("host", name, ip) for name, ip in _hosts(paths["/etc/hosts"][0])]
        lines += [("path", "ro" if ro else "rw", shown, real) for shown, (real, ro) in paths.items()]
        return "".join("\t".join(line) + "\n" for line in lines)

    def _adapt_static(
        self,
        args: tuple[str, ...],
        env: dict[str, str],
        paths: Mapping[str, tuple[str, bool]],
        directory: Path,
        address: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Give a statically linked program real paths, addresses and a kubeconfig."""
        address_here, _ = self.addresses.reach(address, 0)
        program, *rest = (_ANY.sub(address_here, word) for word in args)
        volumes = {shown: real for shown, (real, _) in paths.items()}
        host, port = self.addresses.reach(*API_SERVER)
        changed = {name: _replace_paths(value, volumes) for name, value in env.items() if name != "PATH"} | {
            "PATH": env["PATH"],
            "TMPDIR": volumes["/tmp"],
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
        }
        if TOKEN_DIRECTORY in volumes and "KUBECONFIG" not in changed:
            kubeconfig = directory / "kubeconfig"
            kubeconfig.write_text(json.dumps(_kubeconfig(f"https://{host}:{port}", volumes[TOKEN_DIRECTORY])))
            kubeconfig.chmod(0o600)
            changed["KUBECONFIG"] = str(kubeconfig)
        return (program, *(_replace_paths(word, volumes) for word in rest)), changed


def _paths(mounts: Iterable[MountSpec], directory: Path) -> dict[str, tuple[str, bool]]:
    """Map each path that the pod sees to the real one, and whether it is read-only."""
    paths: dict[str, tuple[str, bool]] = {}
    for number, mount in enumerate(mounts):
        target = os.path.normpath(mount.destination)
        if mount.type == "bind":
            source = mount.source
            if mount.subpaths:
                with opened(source, *mount.subpaths) as place:
                    source = location(place)
            paths[target] = (source, mount.readonly)
        elif target != SHARED_MEMORY:
            scratch = directory / f"scratch-{number}"
            scratch.mkdir(mode=0o700, exist_ok=True)
            paths[target] = (str(scratch), False)
    for name, other_name in OTHER_NAMES.items():
        if name in paths:
            paths.setdefault(other_name, paths[name])
    return paths | _mount_points(paths, directory)


def _mount_points(paths: Mapping[str, tuple[str, bool]], directory: Path) -> dict[str, tuple[str, bool]]:
    """Create the surroundings of a container's mount points; return the directories that this machine lacks.

    They list what is mounted below. So do scratch directories, by links for statically linked programs.
    """
    points = {}
    for target, (source, _) in paths.items():
        around = next((str(folder) for folder in Path(target).parents if str(folder) in paths), None)
        if around is None:
            lacking = [folder for folder in Path(target).parents if not os.path.lexists(folder)]
            for folder in lacking:
                points[str(folder)] = (str(directory / "lacking" / str(folder).lstrip("/")), False)
            link = directory / "lacking" / target.lstrip("/") if lacking else None
        else:
            real = Path(paths[around][0])
            link = real / os.path.relpath(target, around) if around in SCRATCH else None
        if link is not None and not os.path.lexists(link):
            link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.symlink_to(source)
    return points


def _pairs(paths: Mapping[str, tuple[str, bool]]) -> tuple[tuple[str, str], ...]:
    return tuple((shown, real) for shown, (real, _) in paths.items())


def _hosts(path: str) -> list[tuple[str, str]]:
    """Read the names and addresses of a hosts file, without those of the loopback."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    pairs = [(name, words[0]) for words in lines for name in words[1:]]
    return [(name, ip) for name, ip in pairs if not ip.startswith("127.") and ":" not in ip]


def _replace_paths(text: str, paths: Mapping[str, str]) -> str:
    """Replace the paths of volumes in ``text``, alone or after one of ``=:,``.

    Example:
        >>> _replace_paths("--cert=/certs/tls.crt", {"/certs": "/real"})
        '--cert=/real/tls.crt'
    """
    longest_first = "|".join(re.escape(shown) for shown in sorted(paths, key=len, reverse=True))
    # In one pass: a real path may begin with what the pod sees as another volume.
    return re.sub(rf"(?<![^=:,])(?:{longest_first})(?=$|[/:,])", lambda match: paths[match.group()], text)


def is_static(command: str, env: Mapping[str, str]) -> bool:
    """Check for a statically linked program; a script or an unknown command is none."""
    try:
        with open(find_program(command, dict(env), ""), "rb") as file:
            header = file.read(64)
            if header[:5] != b"\x7fELF\x02":
                return False
            (offset,), (size, count) = (
                struct.unpack_from("<Q", header, 32),
                struct.unpack_from("<HH", header, 54),
            )
            file.seek(offset)
            table = file.read(size * count)
    except OSError:
        return False
    kinds = {struct.unpack_from("<I", table, size * index)[0] for index in range(count)}
    return PROGRAM_INTERPRETER not in kinds


def _kubeconfig(server: str, account: str) -> dict[str, Any]:
    """Build a kubeconfig for the pod's own service account."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "cluster", "cluster": {"server": server, "certificate-authority": f"{account}/ca.crt"}}
        ],
        "users": [{"name": "account", "user": {"tokenFile": f"{account}/token"}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "account"}}],
        "current-context": "cluster",
    }
