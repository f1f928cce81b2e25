"""The footprint of a running cluster on its host, to check later that nothing is left."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from .clusters import RunningCluster

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@dataclass(frozen=True)
class Footprint:
    """The processes of a cluster, their namespaces and who is in them, its directory and its port."""

    processes: tuple[psutil.Process, ...]
    namespaces: frozenset[str]
    root: Path
    port: int
    inside: tuple[psutil.Process, ...]

    @classmethod
    def of(cls, cluster: RunningCluster) -> "Footprint":
        processes = cluster.processes()
        found = set().union(*(namespaces(process.pid) for process in processes)) - namespaces(os.getpid())
        # Others may later have a namespace with a number used again, those that were there before too.
        inside = [process for process in psutil.process_iter() if namespaces(process.pid) & found]
        port = cluster.status["api_port"]
        return cls(tuple(processes), frozenset(found), cluster.root, port, tuple(inside))

    def left(self) -> list[str]:
        """Return what is still there, in words."""
        found = [f"process {process}" for process in self.processes if runs(process)]
        found += [
            f"namespace {name} of {process.pid}"
            for process in self.inside
            if runs(process)
            for name in namespaces(process.pid) & self.namespaces
        ]
        found += [
            f"mount {line}"
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if self._mine(line)
        ]
        found += [
            str(path) for path in (self.root, self.root.parent / f".{self.root.name}.lock") if path.exists()
        ]
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", self.port)) == 0:
                found.append(f"port {self.port}")
        return found

    def _mine(self, mount: str) -> bool:
        return str(self.root) in mount or any(name in mount for name in self.namespaces)


def runs(process: psutil.Process) -> bool:
    """Tell whether a process is more than an entry that its parent has not yet taken note of."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def namespaces(pid: int) -> set[str]:
    """Return the namespaces of a process, as ``net:[4026531840]``; none when they are not to be seen."""
    found = set()
    for kind in KINDS:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
        except OSError:
            continue
    return found
