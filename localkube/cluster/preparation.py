"""The files that a cluster's processes read before they start: certificates, settings, the record."""

import contextlib
import json
import os
import pwd
import shutil
import stat
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localkube.cluster import python_path, seccomp
from localkube.cluster.discovery import boot_id
from localkube.cluster.supervisor_process import python_environment
from localkube.config import ClusterSpec
from localkube.controlplane import components, renewal
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.host import HostInfo
from localkube.kubelet.resources.cgroup_hierarchy import machine_processes
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.pressure import default_thresholds
from localkube.network.addresses import NETWORK, LoopbackAddresses, moved_ports
from localkube.network.fair_shares import POD_NAMESPACES
from localkube.paths import ClusterPaths, cache_dir, private_dir, state_dir, write_private
from localkube.runtime.forkserver.command import OPENMP_ENVIRONMENT

# With "off", the kubelet enforces limits without control groups, as on machines that have none.
CONTROL_GROUPS = "TRAINYARD_CGROUPS"
# Seconds without clients and work after which a cluster sleeps (``controlplane/sleep.py``); 0 for never.
SLEEP, SLEEP_SECONDS = "TRAINYARD_SLEEP_SECONDS", 300.0
# Seconds after the API's first answer: each uses a core for a second or two, which the first pods need.
DELAYS = {"forkserver": 2.5, "metrics-server": 5.0}
EGRESS_SOCKET = "egress.sock"
# On the cluster's loopback; the supervisor relays it to the token webhook on the host.
TOKEN_WEBHOOK_PORT = 6444
# What pods need of a checkout.
KIT = (
    *("docs", "images", "kitlib", "localkube", "manifests", "notebooks", "programs", "trainers"),
    "trainyard_kit",
)
CHECKOUT = Path(__file__).resolve().parents[2]
GO_SOURCES = os.path.join("localkube", "controlplane")
SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/etc/")
# The kubelet trusts its cluster's authority alone: reading the machine's takes aiohttp a sixth of a second.
KUBELET_ENVIRONMENT = {"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/dev/null", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class ClusterFiles:
    """The files of a cluster that is about to start.

    ``octet`` (see ``network/addresses.py``) and ``preload`` are for plain mode.
    """

    paths: ClusterPaths
    spec: ClusterSpec
    control_plane: ControlPlaneBinaries
    machine: HostInfo
    port: int
    mode: str = "namespaces"
    octet: int = 0
    preload: Path = Path()

    def write(self) -> list[NodeSettings]:
        """Write all files and return the nodes.

        Raises: OSError or LocalClusterError when the disk is full or read-only.
        """
        paths, nodes = self.paths, self.spec.node_settings(self.machine)
        if self.mode == "plain":
            nodes = [replace(node, external_address=self._on_loopback(node.address)) for node in nodes]
        for directory in (
            paths.root,
            paths.pki,
            paths.logs,
            paths.pods,
            paths.volumes,
            paths.root / "mnt",
            paths.tmpfs,
        ):
            private_dir(directory)
        # A cluster that starts has all its nodes.
        paths.node_states.unlink(missing_ok=True)
        (paths.root / "stopped").unlink(missing_ok=True)
        write_private(paths.root / "plan.json", json.dumps(self._plan(nodes), indent=1))
        renewal.renew(paths.root)
        write_private(paths.root / "kubelet.json", json.dumps(self._kubelet(nodes), indent=1))
        write_private(paths.record, json.dumps(self._first_record(nodes), indent=1))
        return nodes

    def _kubelet(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """Build the content of ``kubelet.kubelet_config.KubeletConfig``."""
        paths, hard = self.paths, self.spec.eviction_hard
        if hard is None:
            hard = default_thresholds(shutil.disk_usage(paths.root).total)
        return {
            "server": f"https://{self._on_loopback(NETWORK.address)}:6443",
            "etcd": components.ETCD_SOCKET,
            "pki": str(paths.pki),
            "socket": str(paths.socket),
            "pods": str(paths.pods),
            "tmpfs": str(paths.tmpfs),
            "volumes": str(paths.volumes),
            "control": str(paths.control),
            "node_states": str(paths.node_states),
            "hide": [os.path.realpath(state_dir())],
            "ids": asdict(self.machine.pod_users),
            "environment": (shown := environment(self.control_plane)),
            **packages(shown, pod_users=self.machine.pod_users.first, plain=self.mode == "plain"),
            "sources": {str(CHECKOUT): str(self._kit)} if self._shows_kit() else {},
            "seccomp": "" if self.mode == "plain" else seccomp.compile_filter(),
            "version": self.control_plane.version,
            "nodes": [asdict(node) for node in nodes],
            "forkserver": self.spec.warm,
            "log_limits": {
                "bytes": self.spec.container_log_max_size,
                "files": self.spec.container_log_max_files,
            },
            "metrics": self.control_plane.has("metrics-server"),
            "programs": {name: list(argv) for name, argv in self.control_plane.programs.items()},
            "images": self.spec.images,
            "overlay": self.machine.overlay,
            "image_service": str(paths.root / "images.sock") if self._pulls() else "",
            "pod_pids_limit": self.spec.pod_pids_limit,
            "pid_max": self.spec.pid_max or machine_processes(),
            "eviction_hard": hard,
            "eviction_pressure_transition_period": self.spec.eviction_pressure_transition_period,
            "control_groups": os.environ.get(CONTROL_GROUPS, "") != "off",
            "egress": self.control_plane.has("gateway") and self.mode != "plain",
            "plain": self._plain(),
        }

    @property
    def _kit(self) -> Path:
        return self.paths.root / "kit"

    def _shows_kit(self) -> bool:
        """Whether pods see a copy of the checkout in its place; an installed kit they see anyway."""
        return self.mode != "plain" and _is_checkout()

    def copy_kit(self) -> None:
        """Copy the part of a checkout that pods see, before the first pod starts."""
        if self._shows_kit():
            shown = json.loads((self.paths.root / "kubelet.json").read_text())
            copy_kit(self._kit, [*shown["environment"], *shown["packages"]])

    def _pulls(self) -> bool:
        """Whether images are pulled: in plain mode, programs see only the host's files."""
        return self.mode != "plain" and self.control_plane.has("images")

    def _on_loopback(self, address: str) -> str:
        """In plain mode, translate a cluster address to its loopback address."""
        return LoopbackAddresses(self.octet, low=0).reach(address, 0)[0] if self.mode == "plain" else address

    def _plain(self) -> dict[str, Any] | None:
        if self.mode != "plain":
            return None
        return {
            "octet": self.octet,
            "low": moved_ports(self.octet),
            "preload": str(self.preload),
            "egress": str(self.paths.root / EGRESS_SOCKET),
        }

    def _plan(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """Build the settings of ``localkube.supervisor``."""
        runtime = asdict(NETWORK) | {
            "mode": self.mode,
            "user_namespace": self.machine.namespaces.user_namespace,
            "subordinate_ids": self.machine.pod_users.subordinate,
            "scratch": str(self.paths.root / "mnt"),
            "tmpfs": str(self.paths.tmpfs),
            "node_addresses": [node.address for node in nodes],
        }
        plain = self.mode == "plain"
        return {
            "runtime": runtime,
            "certificates": self._certificates(nodes),
            "components": self._components(),
            "gateway": None if plain else self._gateway(),
            "images": {"argv": self.control_plane.argv("images"), "env": registry_environment()}
            if self._pulls()
            else None,
            "token_webhook": None if plain else self._token_webhook_relay(),
            "api": [self._on_loopback(NETWORK.address), 6443],
            "sleep_seconds": float(os.environ.get(SLEEP, SLEEP_SECONDS)),
        }

    def _gateway(self) -> list[str] | None:
        if not self.control_plane.has("gateway"):
            return None
        addresses = ("--address", NETWORK.gateway, "--resolver", NETWORK.address)
        subnet, pods = f"10.244.0.0/{NETWORK.prefix}", str(self.paths.root / POD_NAMESPACES)
        return self.control_plane.argv(
            "gateway", "--packet-fd", "{fd}", "--subnet", subnet, *addresses, "--pods", pods
        )

    def _certificates(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """Describe the certificates and the kubeconfig that ``controlplane/renewal.py`` renews."""
        addresses = [
            address for node in nodes for address in (node.address, node.external_address) if address
        ]
        loopback = [self._on_loopback(NETWORK.address)] if self.mode == "plain" else []
        server = f"https://127.0.0.1:{self.port}"
        return {
            "issue": {
                "node_addresses": addresses,
                "api_names": loopback,
                "nodes": [node.name for node in nodes],
            },
            "kubeconfig": {"server": server, "name": self.paths.name, "user": "admin"},
        }

    def _token_webhook(self) -> str | None:
        """Compute the URL of the token webhook as the API server reaches it."""
        url = self.spec.token_webhook
        if url is None or self.mode == "plain":
            return url
        return urlsplit(url)._replace(netloc=f"127.0.0.1:{TOKEN_WEBHOOK_PORT}").geturl()

    def _token_webhook_relay(self) -> dict[str, Any] | None:
        if self.spec.token_webhook is None:
            return None
        url = urlsplit(self.spec.token_webhook)
        return {"listen": ["127.0.0.1", TOKEN_WEBHOOK_PORT], "upstream": [url.hostname, url.port]}

    def _listen_addresses(self) -> components.ListenAddresses:
        addresses = components.ListenAddresses(token_webhook=self._token_webhook())
        if self.mode != "plain":
            return addresses
        loopback = self._on_loopback(NETWORK.address)
        return replace(addresses, api_bind=loopback, loopback=loopback, egress=EGRESS_SOCKET)

    def _components(self) -> list[dict[str, Any]]:
        """Describe the programs that the supervisor starts."""
        paths, plain, programs = self.paths, self.mode == "plain", []
        addresses = self._listen_addresses()
        for component in components.commands(paths, self.control_plane, addresses=addresses):
            argv, env = list(component.argv), dict(component.env)
            entry = _component(paths, component.name, argv, env, component.starts_after)
            programs.append(entry | {"delay": DELAYS.get(component.name, 0.0)})
        environment = python_environment()
        kubelet = [sys.executable, "-m", "localkube.kubelet", str(paths.root / "kubelet.json")]
        programs.append(_component(paths, "kubelet", kubelet, environment | KUBELET_ENVIRONMENT))
        if self.spec.warm:
            forkserver = [sys.executable, "-m", "localkube.runtime.forkserver.server"]
            if plain:
                environment = environment | {"LD_PRELOAD": str(self.preload)}
            entry = _component(paths, "forkserver", forkserver, environment | OPENMP_ENVIRONMENT, "answer")
            programs.append(entry | {"op": "forkserver", "delay": DELAYS["forkserver"]})
        return programs

    def _first_record(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """Build the content of ``cluster.json``."""
        return {
            "name": self.paths.name,
            "nodes": len(nodes),
            "shape": self.spec.as_dict(),
            "mode": self.mode,
            "octet": self.octet,
            "api_port": self.port,
            "version": self.control_plane.version,
            "origin": self.control_plane.origin,
            "kubectl": self.control_plane.argv("kubectl"),
            "created": time.time(),
            "boot": boot_id(),
            "oversubscribed": sum(node.cpus for node in nodes) > self.machine.cores,
        }


def _component(
    paths: ClusterPaths, name: str, argv: list[str], env: dict[str, str], starts_after: str = ""
) -> dict[str, Any]:
    log = str(paths.logs / f"{name}.log")
    return {
        "name": name,
        "argv": argv,
        "env": env,
        "log": log,
        "starts_after": starts_after,
        "cwd": str(paths.root),
    }


def registry_environment() -> dict[str, str]:
    """Build the environment of the program that pulls images: proxies, and paths of credentials and CAs."""
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
    names = (
        *("PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
        *("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"),
        *proxies,
        *(name.lower() for name in proxies[:3]),
    )
    return {name: os.environ[name] for name in names if name in os.environ}


def environment(control_plane: ControlPlaneBinaries | None = None) -> list[str]:
    """List the directories that containers run from: Python, the kit, its cache, the control plane.

    Python is listed by its own name as well where links lead to it, such as ``~/envs`` on another disk or
    uv's links of minor versions: interpreters look for their packages by that name.
    """
    programs = control_plane.programs.values() if control_plane else ()
    prefixes = [sys.prefix, sys.base_prefix]
    places: list[str | Path] = [
        *prefixes,
        cache_dir(),
        *(os.path.dirname(argv[0]) for argv in programs),
        CHECKOUT,
    ]
    directories = {os.path.realpath(place) for place in places if os.path.isdir(place)}
    directories |= {os.path.abspath(place) for place in prefixes}
    # The system's directories are visible anyway, as are those inside another; only a part of a checkout is.
    parents = tuple(f"{place}/" for place in directories if place != str(CHECKOUT) or not _is_checkout())
    return sorted(
        place for place in directories if not place.startswith((*SYSTEM, *parents)) and place != "/usr"
    )


def packages(
    environment: Iterable[str], entries: Iterable[str] = (), *, pod_users: int, plain: bool
) -> dict[str, Any]:
    """List what containers see of packages outside the environment, and what is covered around it all.

    Args:
        entries: The ``sys.path`` of a process of this environment.
        pod_users: The first of the pods' users; 0 where they are this one.
    """
    kit = [str(CHECKOUT / name) for name in KIT] if _is_checkout() else [str(CHECKOUT)]
    visible = [place for place in environment if place != str(CHECKOUT)]
    visible = [*visible, *kit, *(place.rstrip("/") for place in SYSTEM)]
    entries = [entry for entry in entries if entry != str(CHECKOUT)]
    path = python_path.read(entries, hidden=[os.path.realpath(state_dir())], own=visible)
    closed_to = [*environment, *path.shown] if pod_users else []
    return {
        "packages": list(path.shown),
        "variables": path.variables,
        "refused": dict(path.refused),
        "covered": [] if plain else covered(closed_to),
    }


def copy_kit(target: Path, environment: Iterable[str]) -> None:
    """Link or copy the part of a checkout that pods see: the folders of the kit with their present files.

    A checkout may also contain a .git, kubeconfigs, an .env or the socket of an agent: sockets are left out,
    and so are files that other users may not read, unless their whole directory is closed to them.

    Args:
        environment: Directories that are mounted into the copy; without a mount point, each container would
            have to cover everything beside it.
    """
    shutil.rmtree(target, ignore_errors=True)
    private_dir(target)
    target.chmod(0o755)
    for name in KIT:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(
                CHECKOUT / name, target / name, symlinks=True, ignore=_not_shown, copy_function=_link
            )
    for place in map(Path, environment):
        if place != CHECKOUT and place.is_relative_to(CHECKOUT) and not place.is_file():
            (target / place.relative_to(CHECKOUT)).mkdir(parents=True, exist_ok=True)


def _link(source: str, target: str) -> None:
    """Link a file; copy it from another file system, or if another user owns it."""
    with contextlib.suppress(FileNotFoundError):  # another Python renames what it has just compiled
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copy2(source, target)


def _not_shown(directory: str, names: list[str]) -> set[str]:
    """List the entries of a directory that pods do not see: Go sources, and private files.

    This user need not own the checkout.
    """
    if directory.endswith(GO_SOURCES):
        return {name for name in names if not name.endswith(".py")}
    is_closed, hidden = not os.stat(directory).st_mode & stat.S_IROTH, set()
    for name in names:
        path = os.path.join(directory, name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            hidden.add(name)
            continue
        is_own = not mode & stat.S_IROTH and not is_closed and not name.endswith(".pyc")
        is_shown = stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not is_own)
        if not stat.S_ISLNK(mode) and not (is_shown and os.access(path, os.R_OK)):
            hidden.add(name)
    return hidden


def _is_checkout() -> bool:
    """Check whether the kit runs from a checkout, and not from installed packages."""
    return (CHECKOUT / "pyproject.toml").exists()


def covered(environment: Iterable[str]) -> list[str]:
    """List the directories that are covered: below them, pods see only the environment and their volumes.

    Homes have the sockets of agents and daemons, which read-only mounts do not close; so have LXD's
    directories.

    Args:
        environment: Directories of which none above may be closed to others.
    """
    closed = {str(place) for path in environment if (place := _closed(Path(path)))}
    return sorted(place for place in _homes() | closed if os.path.isdir(place))


def _homes() -> set[str]:
    homes = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):  # the user of a container may have no line in /etc/passwd
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    homes = [os.path.realpath(place) for place in homes if os.path.isabs(place)]
    return {"/home", "/root", "/var/lib/lxd", "/var/snap/lxd", *homes} - {"/"}


def _closed(path: Path) -> Path | None:
    """Find the first directory above ``path`` that others may not enter."""
    return next((place for place in reversed(path.parents) if not place.stat().st_mode & stat.S_IXOTH), None)
