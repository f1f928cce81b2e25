"""The control groups below which this user may create others, and the machine's share for pods.

Standard library only, as ``cgroups.py``.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("cpu", "memory")
CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
RESERVED_MEMORY = 1 << 30


@dataclass(frozen=True)
class Bounds:
    """Limits for all pods of a cluster, and for those of one namespace; 0 for no limit.

    Attributes:
        processes: Threads count.
        memory: The memory in bytes.
    """

    processes: int = 0
    processes_of_namespace: int = 0
    memory: int = 0
    memory_of_namespace: int = 0

    @classmethod
    def of_machine(cls, *, processes: int, memory: int) -> "Bounds":
        """Reserve a quarter of the processes and an eighth of the memory, at most 1 GiB, for the system.

        A namespace has a third of the processes of pods, and three quarters of their memory, because a single
        user of a machine works in one namespace.
        """
        pods, pods_memory = processes * 3 // 4, memory - min(memory // 8, RESERVED_MEMORY)
        return cls(pods, pods // 3, pods_memory, pods_memory * 3 // 4)

    @classmethod
    def of_groups(cls, groups: Mapping[str, Path], *, version: int, processes: int) -> "Bounds":
        """Compute them from the machine's resources, and the limits of these groups and their parents.

        Args:
            processes: The machine's.
        """
        memory = "memory.max" if version == 2 else "memory.limit_in_bytes"
        return cls.of_machine(
            processes=_lowest_limit("pids.max", groups.get("pids"), processes),
            memory=_lowest_limit(memory, groups["memory"], machine_memory()),
        )


def number(path: Path) -> int:
    """Read a number from a file; 0 if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def machine_processes() -> int:
    """Read the kernel's limit of processes and threads."""
    return min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))


def machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lowest_limit(name: str, group: Path | None, limit: int) -> int:
    """Find the lowest limit of a group and its parents; ``limit`` if there is none."""
    above = [group, *group.parents] if group else []
    return min([limit, *(value for parent in above if (value := number(parent / name)))])


# The groups of this machine below which this user may create others, in both versions.


def unified() -> dict[str, Path]:
    """Find the nearest version 2 group with usable controllers; the group by controller."""
    own = _own_groups().get("", "/")
    for place, inside, _ in _mounts("cgroup2"):
        group = _directory_of(place, inside, own)
        while True:
            try:
                offered = (group / "cgroup.subtree_control").read_text().split()
            except OSError:
                break
            if set(NEEDED) <= set(offered) and os.access(group, os.W_OK):
                return {name: group for name in CONTROLLERS if name in offered}
            if group == place:
                break
            group = group.parent
    return {}


def separate() -> dict[str, Path]:
    """Find this process's own version 1 group by controller."""
    own = _own_groups()
    groups = {}
    for place, inside, options in _mounts("cgroup"):
        for controller in set(CONTROLLERS) & set(options):
            group = _directory_of(place, inside, own.get(controller, "/"))
            if os.access(group, os.W_OK):
                groups[controller] = group
    return groups


def _own_groups() -> dict[str, str]:
    """Read the path of this process's group by controller; version 2 has the empty name."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return {controller: path for _, names, path in lines for controller in names.split(",")}


def _mounts(kind: str) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield mount point, root and options of the file systems of a type (proc(5), mountinfo)."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (file_system, _, options) = before.split(), after.split(" ", 2)
        if file_system == kind:
            yield Path(fields[4]), fields[3], options.split(",")


def _directory_of(place: Path, inside: str, path: str) -> Path:
    """Find a group's directory when the subtree ``inside`` of the hierarchy is mounted at ``place``."""
    if inside != "/" and path.startswith(inside):
        path = path[len(inside) :]
    group = place / path.strip("/")
    return group if os.path.isdir(group) else place  # also if it may not be examined
