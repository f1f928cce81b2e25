"""Control groups of containers: limits that the kernel enforces, where this user may create groups.

A cluster has one group, below the one it was started in, with a child for each container. Containers without
requests and limits share one, because making a group takes a millisecond. Both versions of the interface are
supported; version 1 has a hierarchy per controller. Whether groups work is found out by moving a process into
one.

Standard library only: ``cluster/discovery.py`` removes with it what a killed cluster left.
"""

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localkube.kubelet.resources.proc_usage import Usage
from localkube.paths import write_private

log = logging.getLogger(__name__)

RECORD = "control-groups.json"
BEST_EFFORT = "best-effort"
PERIOD_MICROSECONDS, LEAST_QUOTA = 100_000, 1000
LEAST_SHARES, MOST_SHARES = 2, 262_144
# Threads count. Kubernetes sets no limit unless told; this one stops a fork bomb, and no training.
MOST_PIDS = 32_768
REMOVAL_SECONDS, REMOVAL_POLL_SECONDS = 2.0, 0.02


@dataclass(frozen=True)
class Resources:
    """A container's requests and limits (None where there are none): CPUs in cores, memory in bytes."""

    cpu_request: float = 0.0
    cpu_limit: float | None = None
    memory_limit: int | None = None


class ControlGroups:
    """The groups of one cluster.

    Args:
        version: Of the interface, 1 or 2.
        roots: The cluster's group: one directory a controller in version 1, one for all in version 2.

    Example:
        >>> groups = ControlGroups.claim(Path("/…/clusters/lab"))  # doctest: +SKIP
        >>> files = groups.make("uid.main.0", Resources(cpu_limit=0.5))  # doctest: +SKIP
    """

    def __init__(self, version: int, roots: dict[str, Path]) -> None:
        self.version = version
        self._roots = roots
        self._late: set[str] = set()

    @classmethod
    def claim(cls, root: Path) -> "ControlGroups | None":
        """Create the group of the cluster in ``root``; None where this user may not."""
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        name = f"trainyard-{root.name}-{digest}"
        for version, find in ((2, unified), (1, separate)):
            parents = find()
            if not set(NEEDED) <= parents.keys():
                continue
            groups = cls(version, {controller: parent / name for controller, parent in parents.items()})
            _record(root, groups.directories)
            try:
                groups.open()
                groups.probe()
            except OSError as error:
                log.info("control groups of version %d cannot be used: %s", version, error)
                groups.remove_all()
                (root / RECORD).unlink()
            else:
                return groups
        return None

    @property
    def directories(self) -> list[Path]:
        return list(dict.fromkeys(self._roots.values()))

    def open(self) -> None:
        """Create the cluster's group.

        Raises:
            OSError: This user may not.
        """
        for directory in self.directories:
            directory.mkdir(exist_ok=True)
        if self.version == 2:
            wanted = " ".join(f"+{controller}" for controller in self._roots)
            _write(self._roots["memory"] / "cgroup.subtree_control", wanted)
        # All pods together weigh as much as the machine has cores: next to other processes of the user
        # they would otherwise count as a single one.
        self._weigh(self._roots["cpu"], float(os.cpu_count() or 1))
        for directory in self.directories:
            (directory / BEST_EFFORT).mkdir(exist_ok=True)
        self._weigh(self._roots["cpu"] / BEST_EFFORT, 0.0)

    def probe(self) -> None:
        """Move a process into a group and end it.

        Raises:
            OSError: That is refused.
        """
        files = self.make("probe", Resources(cpu_limit=1.0, memory_limit=64 << 20))
        with subprocess.Popen(["sleep", "10"], stdin=subprocess.DEVNULL) as process:
            try:
                for file in files:
                    _write(Path(file), str(process.pid))
            finally:
                process.kill()
        self.remove("probe")

    def make(self, identity: str, resources: Resources) -> list[str]:
        """Create a container's group; return the files to which its first process writes a 0.

        Raises:
            OSError: The group cannot be made.
        """
        if resources == Resources():
            return self._entrances(BEST_EFFORT)
        groups = self._groups(identity)
        for directory in dict.fromkeys(groups.values()):
            directory.mkdir(exist_ok=True)
        self._weigh(groups["cpu"], resources.cpu_request)
        self._limit_cpu(groups["cpu"], resources.cpu_limit)
        if resources.memory_limit:
            self._limit_memory(groups["memory"], resources.memory_limit)
        if "pids" in groups:
            _write(groups["pids"] / "pids.max", str(MOST_PIDS))
        return self._entrances(identity)

    def _entrances(self, identity: str) -> list[str]:
        groups = dict.fromkeys(self._groups(identity).values())
        return [str(directory / "cgroup.procs") for directory in groups]

    def usage(self, identity: str) -> Usage | None:
        """Read a container's usage; None when it has no group of its own."""
        groups = self._groups(identity)
        try:
            if self.version == 2:
                seconds = _fields(groups["cpu"] / "cpu.stat")["usage_usec"] / 1e6
                held = int((groups["memory"] / "memory.current").read_text())
                idle = _fields(groups["memory"] / "memory.stat").get("inactive_file", 0)
            else:
                if "cpuacct" not in groups:
                    return None
                seconds = int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
                held = int((groups["memory"] / "memory.usage_in_bytes").read_text())
                idle = _fields(groups["memory"] / "memory.stat").get("total_inactive_file", 0)
        except (OSError, KeyError):
            return None
        # A reader takes zero for an error.
        return Usage(max(seconds, 0.001), max(held - idle, 4096))

    def ran_out_of_memory(self, identity: str) -> bool:
        """Check whether the OOM killer has ended a process of the container."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            return _fields(self._groups(identity)["memory"] / name).get("oom_kill", 0) > 0
        except OSError:
            return False

    def remove(self, identity: str) -> None:
        """Remove a container's group; ``sweep`` removes one whose last process is still ending."""
        self._late.add(identity)
        self.sweep()

    def sweep(self) -> None:
        """Retry removals that came too early."""
        for each in list(self._late):
            if all(map(_gone, dict.fromkeys(self._groups(each).values()))):
                self._late.discard(each)

    def keep_only(self, identities: set[str]) -> None:
        """Remove the groups of all other containers."""
        for root in self.directories:
            for directory in root.iterdir():
                if directory.is_dir() and directory.name not in identities | {BEST_EFFORT}:
                    _gone(directory)

    def remove_all(self) -> None:
        _remove(self.directories)

    def _groups(self, identity: str) -> dict[str, Path]:
        return {controller: root / identity for controller, root in self._roots.items()}

    def _weigh(self, group: Path, cores: float) -> None:
        """Set a group's CPU weight from its request, as the kubelet does."""
        shares = min(MOST_SHARES, max(LEAST_SHARES, int(cores * 1024)))
        if self.version == 2:
            _write(
                group / "cpu.weight", str(1 + (shares - LEAST_SHARES) * 9999 // (MOST_SHARES - LEAST_SHARES))
            )
        else:
            _write(group / "cpu.shares", str(shares))

    def _limit_cpu(self, group: Path, cores: float | None) -> None:
        quota = max(LEAST_QUOTA, int(cores * PERIOD_MICROSECONDS)) if cores else None
        if self.version == 2:
            _write(group / "cpu.max", f"{quota or 'max'} {PERIOD_MICROSECONDS}")
        elif quota:
            _write(group / "cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
            _write(group / "cpu.cfs_quota_us", str(quota))

    def _limit_memory(self, group: Path, size: int) -> None:
        """Limit memory, and swap with it, which Kubernetes' limits do not cover."""
        if self.version == 2:
            _write(group / "memory.max", str(size))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):
                    _write(group / name, value)
            return
        _write(group / "memory.limit_in_bytes", str(size))
        with contextlib.suppress(OSError):
            _write(group / "memory.memsw.limit_in_bytes", str(size))


def remove_recorded(root: Path) -> None:
    """Remove the groups recorded in a cluster's directory, once its processes have ended."""
    try:
        found = [Path(path) for path in json.loads((root / RECORD).read_text())]
    except (OSError, ValueError):
        return
    _remove(found)


def _remove(directories: list[Path]) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    for directory in directories:
        while directory.is_dir():
            for inner in [path for path in directory.iterdir() if path.is_dir()]:
                _gone(inner)
            _gone(directory)
            if time.monotonic() > deadline:
                break
            if directory.is_dir():  # the kernel takes a moment to see the last process off
                time.sleep(REMOVAL_POLL_SECONDS)


def _gone(group: Path) -> bool:
    """Remove a group; False when it is still in use."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _record(root: Path, directories: list[Path]) -> None:
    write_private(root / RECORD, json.dumps([str(directory) for directory in directories]))


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and words[1].isdecimal()}


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


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
    return found if found.is_dir() else place
