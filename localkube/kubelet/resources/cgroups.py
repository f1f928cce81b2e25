"""Control groups of containers: limits that the kernel enforces, where this user may create groups.

A cluster has one group, below the one it was started in, with a child for each pod, and in that one for each
container. A pod without requests and limits is a child of the group ``best-effort``, and has no further ones:
only its processes are counted. Both versions of the interface are supported; version 1 has a hierarchy per
controller. Whether groups work is found out by moving a process into one.

Standard library only: ``cluster/discovery.py`` removes with it what a killed cluster left.
"""

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localkube.kubelet.resources.proc_usage import Usage
from localkube.paths import write_private

log = logging.getLogger(__name__)

NEEDED = ("cpu", "memory")
CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
RECORD = "control-groups.json"
BEST_EFFORT, PROBE = "best-effort", "probe.main.0"
PERIOD_MICROSECONDS, LEAST_QUOTA = 100_000, 1000
LEAST_SHARES, MOST_SHARES = 2, 262_144
# Of a pod; threads count. A kubelet sets no limit unless told; this one stops a fork bomb, and no training.
PIDS_LIMIT = 4096
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
        pids_limit: Processes and threads of each pod; 0 for any number.
    """

    def __init__(self, version: int, roots: dict[str, Path], *, pids_limit: int = PIDS_LIMIT) -> None:
        self.version = version
        self._roots, self._pids_limit = roots, pids_limit
        self._running: set[str] = set()
        self._late: set[str] = set()

    @classmethod
    def claim(cls, root: Path, *, pids_limit: int = PIDS_LIMIT) -> "ControlGroups | None":
        """Create the group of the cluster in ``root``; None where this user may not."""
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        name = f"trainyard-{root.name}-{digest}"
        for version, find in ((2, unified), (1, separate)):
            parents = find()
            if not set(NEEDED) <= parents.keys():
                continue
            roots = {controller: parent / name for controller, parent in parents.items()}
            groups = cls(version, roots, pids_limit=pids_limit)
            write_private(root / RECORD, json.dumps(list(map(str, groups.directories))))
            try:
                groups.open()
                groups.probe()
            except OSError as error:
                log.info("control groups of version %d cannot be used: %s", version, error)
                _remove(groups.directories)
                (root / RECORD).unlink()
            else:
                return groups
        return None

    @property
    def directories(self) -> list[Path]:
        return list(dict.fromkeys(self._roots.values()))

    def open(self) -> None:
        """Create the cluster's group."""
        for directory in self.directories:
            directory.mkdir(exist_ok=True)
        self._delegate(self._roots["memory"], self._roots)
        # All pods together weigh as much as the machine has cores: next to other processes of the user
        # they would otherwise count as a single one.
        self._weigh(self._roots["cpu"], float(os.cpu_count() or 1))
        for directory in self.directories:
            _create(directory / BEST_EFFORT)
        self._delegate(self._roots["memory"] / BEST_EFFORT, {"pids"} & self._roots.keys())
        self._weigh(self._roots["cpu"] / BEST_EFFORT, 0.0)

    def probe(self) -> None:
        """Move a process into a group and end it."""
        files = self.make(PROBE, Resources(cpu_limit=1.0, memory_limit=64 << 20))
        with subprocess.Popen(["sleep", "10"], stdin=subprocess.DEVNULL) as process:
            try:
                for file in files:
                    _write(Path(file), str(process.pid))
            finally:
                process.kill()
        self.remove(PROBE)

    def make(self, identity: str, resources: Resources, *, pod: Resources | None = None) -> list[str]:
        """Create a container's group; return the files to which its first process writes a 0.

        Args:
            identity: ``uid.name.restart``.
            pod: Those of its whole pod; by default the same.
        """
        pod = pod or resources
        self._running.add(identity)
        if pod == Resources():
            return self._make_best_effort(identity)
        groups = self._groups(identity)
        for directory in dict.fromkeys(groups.values()):
            directory.parent.mkdir(exist_ok=True)
        self._delegate(groups["memory"].parent, self._roots)
        for directory in dict.fromkeys(groups.values()):
            _create(directory)
        self.resize_pod(identity, pod)
        self.resize(identity, resources)
        self._limit_pids(groups, "..")
        return self._entrances(groups)

    def _make_best_effort(self, identity: str) -> list[str]:
        shared = {controller: root / BEST_EFFORT for controller, root in self._roots.items()}
        if "pids" in shared:
            own = shared["pids"] / _pod(identity)
            _create(own)
            shared = {name: own if self.version == 2 else group for name, group in shared.items()}
            shared["pids"] = own
            self._limit_pids(shared)
        return self._entrances(shared)

    def _entrances(self, groups: dict[str, Path]) -> list[str]:
        """List the files by which a process with one thread enters groups.

        In version 1 this is ``tasks``: to move a whole process by ``cgroup.procs``, the kernel stops every
        fork of the machine for a grace period of RCU, 16 ms here in place of 0.7.
        """
        name = "tasks" if self.version == 1 else "cgroup.procs"
        return [str(directory / name) for directory in dict.fromkeys(groups.values())]

    def _limit_pids(self, groups: dict[str, Path], below: str = "") -> None:
        if "pids" in groups:
            _write(groups["pids"] / below / "pids.max", str(self._pids_limit or "max"))

    def resize(self, identity: str, resources: Resources) -> None:
        """Set the limits of a container that has a group of its own.

        Raises:
            OSError: The kernel refuses them: version 1 does for less memory than is in use.
        """
        groups = self._groups(identity)
        self._weigh(groups["cpu"], resources.cpu_request)
        self._limit_cpu(groups["cpu"], resources.cpu_limit)
        self._limit_memory(groups["memory"], resources.memory_limit)

    def resize_pod(self, identity: str, resources: Resources) -> None:
        """Set the weight of the pod that a container is of: limits are those of its containers."""
        self._weigh(self._groups(identity)["cpu"].parent, resources.cpu_request)

    def _delegate(self, group: Path, controllers: Iterable[str]) -> None:
        """Let the children of a group have controllers, which only version 2 has to be told."""
        if self.version == 2 and controllers:
            wanted = " ".join(f"+{controller}" for controller in controllers)
            _write(group / "cgroup.subtree_control", wanted)

    def processes(self, uid: str) -> int | None:
        """Count a pod's processes and threads; None where nobody counts them."""
        for group in (uid, f"{BEST_EFFORT}/{uid}"):
            with contextlib.suppress(OSError, KeyError):
                return int((self._roots["pids"] / group / "pids.current").read_text())
        return None

    def memory(self, identity: str) -> int:
        """Read the bytes that a container holds, page cache among them; 0 when it has no group of its own."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        try:
            return int((self._groups(identity)["memory"] / name).read_text())
        except OSError:
            return 0

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
        self._running.discard(identity)
        self._late.add(identity)
        self.sweep()

    def sweep(self) -> None:
        """Retry removals that came too early. A pod's group goes with its last container."""
        pods = {_pod(identity) for identity in self._running}
        for identity in list(self._late):
            groups = list(dict.fromkeys(self._groups(identity).values()))
            if _pod(identity) not in pods:
                groups += [group.parent for group in groups]
                groups += [root / BEST_EFFORT / _pod(identity) for root in self.directories]
            if sum(map(_gone, groups)) == len(groups):
                self._late.discard(identity)

    def keep_only(self, identities: set[str]) -> None:
        """Remove the groups of all other containers."""
        self._running = set(identities)
        kept = {BEST_EFFORT, *identities, *map(_pod, identities)}
        for root in self.directories:
            for group in _below_first(root):
                if group.name not in kept:
                    _gone(group)

    def _groups(self, identity: str) -> dict[str, Path]:
        return {controller: root / _pod(identity) / identity for controller, root in self._roots.items()}

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
        else:
            _write(group / "cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
            _write(group / "cpu.cfs_quota_us", str(quota or -1))

    def _limit_memory(self, group: Path, size: int | None) -> None:
        """Limit memory, and swap with it, which Kubernetes' limits do not cover."""
        if self.version == 2:
            _write(group / "memory.max", str(size or "max"))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):
                    _write(group / name, value)
            return
        plain, with_swap = group / "memory.limit_in_bytes", group / "memory.memsw.limit_in_bytes"
        # The one with swap is never less than the other: raised first, lowered last.
        lowered = size is not None and size < int(plain.read_text())
        for path in (plain, with_swap) if lowered else (with_swap, plain):
            if path.exists():
                _write(path, str(size or -1))


def remove_recorded(root: Path) -> None:
    """Remove the groups recorded in a cluster's directory, once its processes have ended."""
    try:
        directories = [Path(path) for path in json.loads((root / RECORD).read_text())]
    except (OSError, ValueError):
        return
    _remove(directories)


def _remove(directories: list[Path]) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    for directory in directories:
        while directory.is_dir():
            for inner in [*_below_first(directory), directory]:
                _gone(inner)
            if time.monotonic() > deadline:
                break
            if directory.is_dir():  # the kernel takes a moment to see the last process off
                time.sleep(REMOVAL_POLL_SECONDS)


def _pod(identity: str) -> str:
    """The uid of the pod that a container is of."""
    return identity.split(".")[0]


def _below_first(group: Path) -> list[Path]:
    """List the groups in a group, inner ones before outer ones."""
    inner = [Path(place) for place, _, _ in os.walk(group, topdown=False)]
    return inner[:-1]


def _create(group: Path) -> None:
    """Create a group that its container may read, whatever the umask."""
    group.mkdir(exist_ok=True)
    group.chmod(0o755)


def _gone(group: Path) -> bool:
    """Remove a group; False when it is still in use."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and words[1].isdecimal()}


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


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
