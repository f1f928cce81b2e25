"""Resources that a cluster holds at a moment, to check that deleted pods have left nothing."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from .clusters import RunningCluster
from .footprint import namespaces


@dataclass(frozen=True)
class ResourceCounts:
    """What must be the same again after any number of pods.

    Attributes:
        descriptors: By process; without the connections of kubelet and supervisor, which clients keep a
        while. mounts: By process; the supervisor has the machine's, in which others come and go.
        pod_directories: What is in the directories of pods, on disk and in memory.
    """

    processes: int
    zombies: int
    namespaces: int
    interfaces: int
    mounts: dict[str, int]
    descriptors: dict[str, int]
    pod_directories: tuple[str, ...]

    @classmethod
    def of(cls, cluster: RunningCluster) -> "ResourceCounts":
        found = cluster.processes()
        runtime_init = runtime_init_of(cluster)
        kept = {
            "runtime": runtime_init,
            "kubelet": cluster.process("localkube.kubelet"),
            "supervisor": found[0],
        }
        in_memory = Path(f"/proc/{runtime_init.pid}/root") / cluster.root.relative_to("/") / "tmpfs"
        return cls(
            processes=len(found),
            zombies=sum(process.status() == psutil.STATUS_ZOMBIE for process in found),
            namespaces=len(set().union(*(namespaces(process.pid) for process in found))),
            interfaces=Path(f"/proc/{runtime_init.pid}/net/dev").read_text().count(":"),
            mounts={name: _mounts(kept[name]) for name in ("runtime", "kubelet")},
            descriptors={
                name: _descriptors(process, sockets=name == "runtime") for name, process in kept.items()
            },
            pod_directories=tuple(
                str(path) for directory in (cluster.root / "pods", in_memory) for path in directory.iterdir()
            ),
        )


def runtime_init_of(cluster: RunningCluster) -> psutil.Process:
    """Return process 1 of a cluster's site."""
    (outer,) = [
        process
        for process in cluster.processes()[0].children()
        if any(word.endswith("runtime/init.py") for word in process.cmdline())
    ]
    (runtime_init,) = outer.children()
    return runtime_init


def proportional_memory(process: psutil.Process) -> int:
    """Return the bytes of a process, each shared page counted by the share that it has."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def _mounts(process: psutil.Process) -> int:
    return len(Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines())


def _descriptors(process: psutil.Process, *, sockets: bool) -> int:
    count = 0
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            count += sockets or not str(path.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count
