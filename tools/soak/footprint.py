"""The footprint of a running cluster on its host, to check after its deletion that nothing remains."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from soak.resources import control_groups, namespaces, processes


@dataclass(frozen=True)
class Footprint:
    """A cluster's processes, their namespaces and members, its directory, port and control groups."""

    processes: tuple[psutil.Process, ...]
    namespaces: frozenset[str]
    root: Path
    port: int
    inside: tuple[psutil.Process, ...]
    groups: tuple[Path, ...]

    @classmethod
    def of(cls, root: Path) -> "Footprint":
        """Record the footprint of the cluster in ``root``."""
        running = processes(root)
        own_namespaces = set().union(*(namespaces(process.pid) for process in running)) - namespaces(
            os.getpid()
        )
        # Namespace numbers are reused later, also by processes that exist now.
        inside = [process for process in psutil.process_iter() if namespaces(process.pid) & own_namespaces]
        port = json.loads((root / "cluster.json").read_text())["api_port"]
        groups = tuple(control_groups(root))
        return cls(tuple(running), frozenset(own_namespaces), root, port, tuple(inside), groups)

    def leftovers(self) -> list[str]:
        """Describe what remains."""
        remains = [f"process {process}" for process in self.processes if runs(process)]
        remains += [
            f"namespace {name} of {process.pid}"
            for process in self.inside
            if runs(process)
            for name in namespaces(process.pid) & self.namespaces
        ]
        remains += [
            f"mount {line}"
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if self._is_own(line)
        ]
        lock = self.root.parent / f".{self.root.name}.lock"
        remains += [str(path) for path in (self.root, lock, *self.groups) if path.exists()]
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", self.port)) == 0:
                remains.append(f"port {self.port}")
        return remains

    def _is_own(self, mount: str) -> bool:
        return str(self.root) in mount or any(name in mount for name in self.namespaces)


def runs(process: psutil.Process) -> bool:
    """Check whether a process is alive, and not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
