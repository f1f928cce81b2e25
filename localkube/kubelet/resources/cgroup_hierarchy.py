"""Where this user may create control groups, and how much of the machine they may share out.

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
    """What pods may have: all of a cluster together, and those of one namespace; 0 for any amount.

    Attributes:
        processes: Threads count.
        memory: In bytes.
    """

    processes: int = 0
    processes_of_namespace: int = 0
    memory: int = 0
    memory_of_namespace: int = 0

    @classmethod
    def of_machine(cls, *, processes: int, memory: int) -> "Bounds":
        """Leave a quarter of the processes and an eighth of the memory, at most 1 GiB, to all but pods.

        A namespace has a third of the processes of pods, and three quarters of their memory: a person who is
        alone on a machine is in one.
        """
        pods, room = processes * 3 // 4, memory - min(memory // 8, RESERVED_MEMORY)
        return cls(pods, pods // 3, room, room * 3 // 4)

    @classmethod
    def of_groups(cls, groups: Mapping[str, Path], *, version: int, processes: int) -> "Bounds":
        """Compute them from what the machine has, and what these groups and those above them may have.

        Args:
            processes: The machine's.
        """
        memory = "memory.max" if version == 2 else "memory.limit_in_bytes"
        return cls.of_machine(
            processes=_least("pids.max", groups.get("pids"), processes),
            memory=_least(memory, groups["memory"], machine_memory()),
        )


def number(path: Path) -> int:
    """Read a number; 0 where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def machine_processes() -> int:
    """Read how many processes and threads the kernel allows in all."""
    return min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))


def machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _least(name: str, group: Path | None, most: int) -> int:
    """Find the lowest of a group's limits and those above it; ``most`` where there is none."""
    above = [group, *group.parents] if group else []
    return min([most, *(limit for place in above if (limit := number(place / name)))])


# The groups of this machine below which this user may create more, in both versions.


def unified() -> dict[str, Path]:
    """Find the nearest version 2 group with usable controllers; the group by controller."""
    own = _own_groups().get("", "/")
    for place, inside, _ in _mounts("cgroup2"):
        group = _below(place, inside, own)
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
            group = _below(place, inside, own.get(controller, "/"))
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


def _below(place: Path, inside: str, path: str) -> Path:
    """Find a group's directory when ``inside`` of the hierarchy is mounted at ``place``."""
    if inside != "/" and path.startswith(inside):
        path = path[len(inside) :]
    group = place / path.strip("/")
    return group if os.path.isdir(group) else place  # also where it may not be looked at
