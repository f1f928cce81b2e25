"""Find the control groups of this machine below which a user may create more, in both versions.

Standard library only, as ``cgroups.py``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("cpu", "memory")
CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")


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
    found = {}
    for place, inside, options in _mounts("cgroup"):
        for controller in set(CONTROLLERS) & set(options):
            group = _below(place, inside, own.get(controller, "/"))
            if os.access(group, os.W_OK):
                found[controller] = group
    return found


def _own_groups() -> dict[str, str]:
    """Read the path of this process's group by controller; version 2 has the empty name."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return {controller: path for _, names, path in lines for controller in names.split(",")}


def _mounts(kind: str) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield mount point, root and options of the file systems of a type (proc(5), mountinfo)."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (what, _, options) = before.split(), after.split(" ", 2)
        if what == kind:
            yield Path(fields[4]), fields[3], options.split(",")


def _below(place: Path, inside: str, path: str) -> Path:
    """Find a group's directory when ``inside`` of the hierarchy is mounted at ``place``."""
    if inside != "/" and path.startswith(inside):
        path = path[len(inside) :]
    found = place / path.strip("/")
    return found if os.path.isdir(found) else place  # also where it may not be looked at
