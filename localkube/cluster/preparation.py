"""The files that a cluster's processes read before they start: certificates, settings, the record."""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localkube.cluster.discovery import boot_id
from localkube.config import ClusterSpec
from localkube.controlplane import certificates, components
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.host import HostInfo
from localkube.kubelet.nodes.node import NodeSettings
from localkube.network.addresses import ClusterNetwork, LoopbackAddresses, moved_ports
from localkube.paths import ClusterPaths, private_dir, state_dir, write_private

# Set to "off", containers are held to their limits without control groups, as where there are none.
CONTROL_GROUPS = "TRAINYARD_CGROUPS"
# Seconds after the API's first answer: each takes a core for a second or two, which the first pods want.
DELAYS = {"metrics-server": 3.0, "forkserver": 4.0}
EGRESS_SOCKET = "egress.sock"
# On the cluster's loopback; the supervisor relays it to the token webhook on the host.
TOKEN_WEBHOOK_PORT = 6444
# The kubelet trusts its cluster's authority alone: reading the machine's takes aiohttp a sixth of a second.
KUBELET_ENVIRONMENT = {"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/dev/null", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class ClusterFiles:
    """The files of a cluster that is about to start.

    ``octet`` (see ``network/addresses.py``) and ``preload`` are for plain mode.
    """

    paths: ClusterPaths
    wanted: ClusterSpec
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
        paths, nodes = self.paths, self.wanted.node_settings(self.machine)
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
        loopback = [self._on_loopback(ClusterNetwork().address)] if self.mode == "plain" else []
        certificates.issue(
            paths.pki,
            node_addresses=[each for node in nodes for each in (node.address, node.external_address) if each],
            api_names=loopback,
        )
        certificates.write_kubeconfig(
            paths.kubeconfig,
            server=f"https://127.0.0.1:{self.port}",
            name=paths.name,
            pki=paths.pki,
            user="admin",
        )
        write_private(paths.root / "kubelet.json", json.dumps(self._kubelet(nodes), indent=1))
        write_private(paths.root / "plan.json", json.dumps(self._plan(nodes), indent=1))
        write_private(paths.record, json.dumps(self._first_record(nodes), indent=1))
        return nodes

    def _kubelet(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """The content of ``kubelet.config.KubeletConfig``."""
        paths = self.paths
        return {
            "server": f"https://{self._on_loopback(ClusterNetwork().address)}:6443",
            "pki": str(paths.pki),
            "socket": str(paths.socket),
            "pods": str(paths.pods),
            "tmpfs": str(paths.tmpfs),
            "volumes": str(paths.volumes),
            "control": str(paths.control),
            "node_states": str(paths.node_states),
            "simulated": str(paths.simulated),
            "hide": [os.path.realpath(state_dir())],
            "version": self.control_plane.version,
            "nodes": [asdict(node) for node in nodes],
            "forkserver": self.wanted.warm,
            "log_limits": {
                "bytes": self.wanted.container_log_max_size,
                "files": self.wanted.container_log_max_files,
            },
            "metrics": self.control_plane.has("metrics-server"),
            "programs": {name: list(argv) for name, argv in self.control_plane.programs.items()},
            "control_groups": os.environ.get(CONTROL_GROUPS, "") != "off",
            "egress": self.control_plane.has("gateway") and self.mode != "plain",
            "plain": self._plain(),
        }

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
        """The settings of ``localkube.supervisor``."""
        runtime = asdict(ClusterNetwork()) | {
            "mode": self.mode,
            "user_namespace": self.machine.namespaces.user_namespace,
            "scratch": str(self.paths.root / "mnt"),
            "tmpfs": str(self.paths.tmpfs),
            "node_addresses": [node.address for node in nodes],
        }
        plain = self.mode == "plain"
        return {
            "runtime": runtime,
            "components": self._components(),
            "gateway": None if plain else _gateway(self.control_plane, ClusterNetwork()),
            "token_webhook": None if plain else self._way_to_token_webhook(),
            "api": [self._on_loopback(ClusterNetwork().address), 6443],
        }

    def _token_webhook(self) -> str | None:
        """The URL of the token webhook as the API server reaches it."""
        url = self.wanted.token_webhook
        if url is None or self.mode == "plain":
            return url
        return urlsplit(url)._replace(netloc=f"127.0.0.1:{TOKEN_WEBHOOK_PORT}").geturl()

    def _way_to_token_webhook(self) -> dict[str, Any] | None:
        if self.wanted.token_webhook is None:
            return None
        there = urlsplit(self.wanted.token_webhook)
        return {"inside": ["127.0.0.1", TOKEN_WEBHOOK_PORT], "outside": [there.hostname, there.port]}

    def _components(self) -> list[dict[str, Any]]:
        """The programs that the supervisor starts."""
        paths, plain, found = self.paths, self.mode == "plain", []
        own = self._on_loopback(ClusterNetwork().address)
        at = components.ListenAddresses(token_webhook=self._token_webhook())
        if plain:
            at = replace(at, api_bind=own, loopback=own, egress=EGRESS_SOCKET)
        for component in components.commands(paths, self.control_plane, addresses=at):
            late = bool(component.starts_after)
            argv, env = list(component.argv), dict(component.env)
            entry = _component(paths, component.name, argv, env, late=late)
            found.append(entry | {"delay": DELAYS.get(component.name, 0.0)})
        environment = python_environment()
        kubelet = [sys.executable, "-m", "localkube.kubelet", str(paths.root / "kubelet.json")]
        found.append(_component(paths, "kubelet", kubelet, environment | KUBELET_ENVIRONMENT, late=False))
        if self.wanted.warm:
            forkserver = [sys.executable, "-m", "localkube.runtime.forkserver.server"]
            if plain:
                environment = environment | {"LD_PRELOAD": str(self.preload)}
            entry = _component(paths, "forkserver", forkserver, environment, late=True)
            found.append(entry | {"op": "forkserver", "delay": DELAYS["forkserver"]})
        return found

    def _first_record(self, nodes: list[NodeSettings]) -> dict[str, Any]:
        """The content of ``cluster.json``."""
        return {
            "name": self.paths.name,
            "nodes": len(nodes),
            "shape": self.wanted.as_dict(),
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
    paths: ClusterPaths, name: str, argv: list[str], env: dict[str, str], *, late: bool
) -> dict[str, Any]:
    log = str(paths.logs / f"{name}.log")
    return {
        "name": name,
        "argv": argv,
        "env": env,
        "log": log,
        "starts_after_api": late,
        "cwd": str(paths.root),
    }


def python_environment() -> dict[str, str]:
    """The environment of our own Python processes, without the user's secrets."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")
    kept = (*kept, "TRAINYARD_LOG_LEVEL")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    source = str(Path(__file__).resolve().parents[2])
    return environment | {"PYTHONPATH": source, "PYTHONUNBUFFERED": "1"}


def _gateway(control_plane: ControlPlaneBinaries, network: ClusterNetwork) -> list[str] | None:
    if not control_plane.has("gateway"):
        return None
    subnet = f"10.244.0.0/{network.prefix}"
    return control_plane.argv(
        "gateway", "--packet-fd", "{fd}", "--subnet", subnet, "--address", network.gateway
    )
