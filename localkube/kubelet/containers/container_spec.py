"""From a container's specification to the order that starts it: environment, mounts, command.

Pure but for a look at which directories the host has; ``pods/pod.py`` sends the orders.
"""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.kubelet.containers.environment import expand
from localkube.kubelet.images.image_table import stand_in
from localkube.kubelet.quantity import parse

SCRATCH = ("/tmp", "/run", "/var/tmp")
SHARED_MEMORY_BYTES = 64 * 1024 * 1024
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "dri", "infiniband", "kfd")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/tmp"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Host:
    """What containers take from this machine."""

    hide: tuple[str, ...]
    python: str = sys.executable

    @property
    def path(self) -> str:
        return f"{os.path.dirname(self.python)}:{SYSTEM_PATH}"

    def devices(self) -> list[str]:
        graphics = [name for name in os.listdir("/dev") if name.startswith("nvidia")]
        return [*DEVICES, *graphics]

    def root_mounts(self) -> list[dict[str, Any]]:
        """Return every container's writable places, and the kit's Python where one would hide it."""
        mounts = [{"kind": "tmpfs", "target": target, "mode": "1777"} for target in SCRATCH]
        mounts.append({"kind": "tmpfs", "target": "/dev/shm", "mode": "1777", "size": SHARED_MEMORY_BYTES})
        prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        for prefix in sorted(prefixes):
            if any(prefix.startswith(place + "/") for place in SCRATCH):
                mounts.append({"kind": "bind", "source": prefix, "target": prefix, "read_only": True})
        return mounts


def threads(container: Mapping[str, Any], node_cpus: float) -> int:
    """Return how many threads OpenMP and MKL should start: the CPU limit, rounded up."""
    limit = container.get("resources", {}).get("limits", {}).get("cpu")
    return max(1, math.ceil(float(parse(limit)) if limit else node_cpus))


def base_environment(
    container: Mapping[str, Any], *, host: Host, hostname: str, node_cpus: float, program: str = ""
) -> dict[str, str]:
    """Return the environment that an image would have given, before the pod's own.

    ``program`` is a folder that comes first on PATH.
    """
    count = str(threads(container, node_cpus))
    return {
        "PATH": f"{program}:{host.path}" if program else host.path,
        "HOME": HOME,
        "HOSTNAME": hostname,
        "LANG": "C.UTF-8",
        **({"TERM": "xterm"} if container.get("tty") else {}),
        **dict.fromkeys(THREAD_VARIABLES, count),
        **stand_in(container["image"]).env,
    }


def order(
    container: Mapping[str, Any],
    *,
    identity: str,
    pod: str,
    argv: list[str],
    environment: dict[str, str],
    mounts: list[dict[str, Any]],
    host: Host,
) -> dict[str, Any]:
    """Return the runtime's ``run`` order of a container.

    Args:
        container: Its specification, for the working directory and ``readOnlyRootFilesystem``.
        identity: Unique for each start of it.
        pod: The pod's uid, whose namespaces it joins.
        argv: Its command before the expansion of ``$(VAR)``.
        environment: Complete.
        mounts: After the root's own; the last one wins.
        host: What it takes from this machine.
    """
    security = container.get("securityContext") or {}
    directory = container.get("workingDir") or stand_in(container["image"]).directory
    return {
        "id": identity,
        "pod": pod,
        "argv": [expand(word, environment) for word in argv],
        "env": environment,
        "cwd": directory,
        "stdin": bool(container.get("stdin")),
        "tty": bool(container.get("tty")),
        "root": {
            "skip": [place.strip("/") for place in SCRATCH if place.count("/") == 1] + ["lost+found"],
            "devices": host.devices(),
            "hide": list(host.hide),
            "read_only": bool(security.get("readOnlyRootFilesystem")),
            "mounts": host.root_mounts() + mounts,
            "directory": directory,
        },
    }


def network_files(
    directory: Path, *, hostname: str, address: str, subdomain: str, namespace: str, pod: Mapping
) -> None:
    """Write the pod's /etc/hosts, /etc/hostname and /etc/resolv.conf into ``directory``."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    full = f"{hostname}.{subdomain}.{namespace}.svc.cluster.local\t" if subdomain else ""
    lines.append(f"{address}\t{full}{hostname}")
    for alias in pod["spec"].get("hostAliases") or []:
        lines.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames', []))}")
    search = f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
    resolver = ["nameserver 10.244.0.1", f"search {search}", "options ndots:5"]
    (directory / "hosts").write_text("\n".join(lines) + "\n")
    (directory / "hostname").write_text(hostname + "\n")
    (directory / "resolv.conf").write_text("\n".join(resolver) + "\n")


def network_mounts(directory: Path) -> list[dict[str, Any]]:
    """Return the mounts that put ``network_files`` in their place."""
    names = ("hosts", "hostname", "resolv.conf")
    return [{"kind": "bind", "source": str(directory / name), "target": f"/etc/{name}"} for name in names]
