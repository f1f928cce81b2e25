"""Control groups of containers: limits that the kernel enforces, where this user may create groups.

A cluster has one group, below the one it was started in, with a child for each namespace, in it one for each
pod, and in that one for each container. A pod without requests and limits is a child of its namespace's group
``best-effort``, and has no children: only its processes are counted. The cluster's limits reserve a part of
the machine for the system, and a namespace's a part of the cluster's for other namespaces. Both versions of
the interface are supported; version 1 has a hierarchy per controller. Moving a process into a group tests
whether groups work.

Standard library only: ``cluster/discovery.py`` uses it to remove the groups of a killed cluster.
"""

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localkube.kubelet.resources.cgroup_hierarchy import NEEDED, Bounds, number, separate, unified
from localkube.kubelet.resources.proc_usage import Usage
from localkube.paths import write_private

log = logging.getLogger(__name__)

RECORD = "control-groups.json"
BEST_EFFORT, PROBE = "best-effort", "probe.main.0"
PERIOD_MICROSECONDS, MIN_QUOTA = 100_000, 1000
MIN_SHARES, MAX_SHARES = 2, 262_144
# Of a pod; threads count. A kubelet's default is no limit; this one stops a fork bomb, but no training.
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
        version: The cgroup version, 1 or 2.
        roots: The cluster's group: one directory a controller in version 1, one for all in version 2.
        pids_limit: Processes and threads of each pod, at most half of its namespace's; 0 for no such limit.
        bounds: The limits of the cluster and of each namespace.
    """

    def __init__(
        self,
        version: int,
        roots: dict[str, Path],
        *,
        pids_limit: int = PIDS_LIMIT,
        bounds: Bounds = Bounds(),  # noqa: B008
    ) -> None:
        self.version, self.bounds = version, bounds
        half = bounds.processes_of_namespace // 2
        self._roots, self._pids_limit = roots, min(pids_limit, half) if half and pids_limit else pids_limit
        self._containers: set[str] = set()
        self._not_removed: set[str] = set()
        # By the pod's uid: its namespace, and the cores that it requests.
        self._pods: dict[str, tuple[str, float]] = {}
        self._ooms: dict[str, int] = {}
        self._namespaces: set[str] = set()  # those that have a group

    @classmethod
    def claim(cls, root: Path, *, pids_limit: int = PIDS_LIMIT, processes: int) -> "ControlGroups | None":
        """Create the group of the cluster in ``root``; None if this user may not.

        Args:
            processes: The machine's limit of processes and threads, of which pods get a part.
        """
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        name = f"trainyard-{root.name}-{digest}"
        for version, find in ((2, unified), (1, separate)):
            parents = find()
            if not set(NEEDED) <= parents.keys():
                continue
            roots = {controller: parent / name for controller, parent in parents.items()}
            bounds = Bounds.of_groups(parents, version=version, processes=processes)
            groups = cls(version, roots, pids_limit=pids_limit, bounds=bounds)
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

    @property
    def counts_processes(self) -> bool:
        return "pids" in self._roots

    def open(self) -> None:
        """Create the cluster's group."""
        for directory in self.directories:
            directory.mkdir(exist_ok=True)
        self._delegate(self._roots["memory"], self._roots)
        # The weight of all pods together is that of all cores: next to other processes of the user they
        # would otherwise count as a single process.
        self._set_cpu_weight(self._roots["cpu"], float(os.cpu_count() or 1))
        self._set_bounds(self._roots, self.bounds.processes, self.bounds.memory)

    def _open_namespace(self, namespace: str) -> None:
        """Create a namespace's group; idempotent."""
        if namespace in self._namespaces:
            return
        groups = {controller: root / namespace for controller, root in self._roots.items()}
        for directory in dict.fromkeys(groups.values()):
            directory.mkdir(exist_ok=True)
        self._delegate(groups["memory"], self._roots)
        self._set_cpu_weight(groups["cpu"], 0.0)
        self._set_bounds(groups, self.bounds.processes_of_namespace, self.bounds.memory_of_namespace)
        self._namespaces.add(namespace)

    def _set_bounds(self, groups: dict[str, Path], processes: int, memory: int) -> None:
        if processes and "pids" in groups:
            _write(groups["pids"] / "pids.max", str(processes))
        if memory:
            self._limit_memory(groups["memory"], memory, oom_group=False)

    def _set_namespace_weight(self, namespace: str) -> None:
        """Set a namespace's CPU weight to the sum of its pods', so that they count as among all pods."""
        cores = sum(cores for pod_namespace, cores in self._pods.values() if pod_namespace == namespace)
        self._set_cpu_weight(self._roots["cpu"] / namespace, cores)

    def probe(self) -> None:
        """Test that a process can be moved into a group."""
        files = self.make(PROBE, Resources(cpu_limit=1.0, memory_limit=64 << 20), namespace=_pod_uid(PROBE))
        with subprocess.Popen(["sleep", "10"], stdin=subprocess.DEVNULL) as process:
            try:
                for file in files:
                    _write(Path(file), str(process.pid))
            finally:
                process.kill()
        self.remove(PROBE)
        self.sweep_namespaces()

    def make(
        self, identity: str, resources: Resources, *, pod: Resources | None = None, namespace: str = "default"
    ) -> list[str]:
        """Create a container's group; return the files to which its first process writes a 0.

        Args:
            identity: ``uid.name.restart``.
            pod: The resources of its whole pod; by default the same.
            namespace: The pod's.
        """
        pod = pod or resources
        self._containers.add(identity)
        known = self._pods.get(_pod_uid(identity))
        self._pods[_pod_uid(identity)] = namespace, pod.cpu_request
        self._open_namespace(namespace)
        if pod == Resources():
            return self._make_best_effort(identity, namespace)
        if known != self._pods[_pod_uid(identity)]:
            self._set_namespace_weight(namespace)
        groups = self._groups(identity)
        for directory in dict.fromkeys(groups.values()):
            directory.parent.mkdir(exist_ok=True)
        self._delegate(groups["memory"].parent, self._roots)
        for directory in dict.fromkeys(groups.values()):
            _create(directory)
        self.resize_pod(identity, pod)
        self.resize(identity, resources)
        self._limit_pids(groups, "..")
        return self._join_files(groups)

    def _make_best_effort(self, identity: str, namespace: str) -> list[str]:
        shared = {controller: root / namespace / BEST_EFFORT for controller, root in self._roots.items()}
        if not all(group.is_dir() for group in shared.values()):
            for directory in dict.fromkeys(shared.values()):
                _create(directory)
            self._delegate(shared["memory"], {"pids"} & self._roots.keys())
            self._set_cpu_weight(shared["cpu"], 0.0)
        self._ooms[identity] = self._count_oom_kills(shared["memory"])
        if "pids" in shared:
            own = shared["pids"] / _pod_uid(identity)
            _create(own)
            shared = {name: own if self.version == 2 else group for name, group in shared.items()}
            shared["pids"] = own
            self._limit_pids(shared)
        return self._join_files(shared)

    def _join_files(self, groups: dict[str, Path]) -> list[str]:
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
        self._set_cpu_weight(groups["cpu"], resources.cpu_request)
        self._limit_cpu(groups["cpu"], resources.cpu_limit)
        self._limit_memory(groups["memory"], resources.memory_limit)

    def resize_pod(self, identity: str, resources: Resources) -> None:
        """Set the CPU weight of a container's pod, which has no limits of its own."""
        pod = self._groups(identity)["cpu"].parent
        self._set_cpu_weight(pod, resources.cpu_request)
        if self._pods.get(_pod_uid(identity), ("", 0.0))[1] != resources.cpu_request:
            self._pods[_pod_uid(identity)] = pod.parent.name, resources.cpu_request
            self._set_namespace_weight(pod.parent.name)

    def _delegate(self, group: Path, controllers: Iterable[str]) -> None:
        """Enable controllers for the children of a group, which only version 2 requires."""
        if self.version == 2 and controllers:
            enabled = " ".join(f"+{controller}" for controller in controllers)
            _write(group / "cgroup.subtree_control", enabled)

    def processes(self, uid: str) -> int | None:
        """Count a pod's processes and threads; None if they are not counted."""
        namespace = self._namespace(uid)
        for group in (uid, f"{BEST_EFFORT}/{uid}"):
            with contextlib.suppress(OSError, KeyError):
                return int((self._roots["pids"] / namespace / group / "pids.current").read_text())
        return None

    def of_namespace(self, namespace: str) -> tuple[int, int]:
        """Read the processes and the memory in bytes of a namespace's pods; 0 if they are not counted."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return (
            number(self._roots["pids"] / namespace / "pids.current") if "pids" in self._roots else 0,
            number(self._roots["memory"] / namespace / name),
        )

    def memory(self, identity: str) -> int:
        """Read the memory of a container, including page cache; 0 if it has no group of its own."""
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
                memory = int((groups["memory"] / "memory.current").read_text())
                idle = _fields(groups["memory"] / "memory.stat").get("inactive_file", 0)
            else:
                if "cpuacct" not in groups:
                    return None
                seconds = int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
                memory = int((groups["memory"] / "memory.usage_in_bytes").read_text())
                idle = _fields(groups["memory"] / "memory.stat").get("total_inactive_file", 0)
        except (OSError, KeyError):
            return None
        # metrics-server takes zero for an error.
        return Usage(max(seconds, 0.001), max(memory - idle, 4096))

    def ran_out_of_memory(self, identity: str) -> bool:
        """Check whether the OOM killer has ended a process of the container."""
        shared = self._roots["memory"] / self._namespace(_pod_uid(identity)) / BEST_EFFORT
        if identity in self._ooms and self._count_oom_kills(shared) > self._ooms[identity]:
            return True
        return self._count_oom_kills(self._groups(identity)["memory"]) > 0

    def _count_oom_kills(self, group: Path) -> int:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            return _fields(group / name).get("oom_kill", 0)
        except OSError:
            return 0

    def remove(self, identity: str) -> None:
        """Remove a container's group; ``sweep`` removes it later if its last process is still exiting."""
        self._containers.discard(identity)
        self._ooms.pop(identity, None)
        self._not_removed.add(identity)
        self.sweep()

    def sweep(self) -> None:
        """Retry removals that were too early. A pod's group is removed with its last container."""
        pods = {_pod_uid(identity) for identity in self._containers}
        for identity in list(self._not_removed):
            groups = list(dict.fromkeys(self._groups(identity).values()))
            ended = _pod_uid(identity) not in pods
            if ended:
                namespace = self._namespace(_pod_uid(identity))
                groups += [group.parent for group in groups]
                groups += [root / namespace / BEST_EFFORT / _pod_uid(identity) for root in self.directories]
            if sum(map(_remove_group, groups)) == len(groups):
                self._not_removed.discard(identity)
                if ended and self._pods.pop(_pod_uid(identity), ("", 0.0))[1]:
                    self._set_namespace_weight(namespace)

    def sweep_namespaces(self) -> None:
        """Remove the groups of namespaces without pods."""
        used = {namespace for namespace, _ in self._pods.values()}
        self._namespaces &= used
        for root in self.directories:
            for group in root.iterdir():
                if group.is_dir() and group.name not in used:
                    _remove_group(group / BEST_EFFORT)
                    _remove_group(group)

    def keep_only(self, identities: set[str]) -> None:
        """Remove the groups of all other containers, and restore the records of these containers' pods."""
        self._containers = set(identities)
        names = {*identities, *map(_pod_uid, identities)}
        for root in self.directories:
            for group in _children_first(root):
                if group.name not in names:
                    _remove_group(group)
        for uid in set(map(_pod_uid, identities)):
            namespace = self._namespace(uid)
            self._pods[uid] = namespace, self._requested(self._roots["cpu"] / namespace / uid)

    def _namespace(self, uid: str) -> str:
        """Find the namespace of a pod; for a pod of an earlier kubelet, found by its group."""
        if uid in self._pods:
            return self._pods[uid][0]
        root = self._roots.get("pids", self._roots["memory"])
        for group in root.iterdir() if root.is_dir() else ():
            if (group / uid).is_dir() or (group / BEST_EFFORT / uid).is_dir():
                return group.name
        return ""

    def _groups(self, identity: str) -> dict[str, Path]:
        relative = Path(self._namespace(_pod_uid(identity)), _pod_uid(identity), identity)
        return {controller: root / relative for controller, root in self._roots.items()}

    def _requested(self, group: Path) -> float:
        """Read from a pod's CPU weight how many cores it requests."""
        if self.version == 1:
            shares = number(group / "cpu.shares")
        else:
            span = MAX_SHARES - MIN_SHARES
            shares = MIN_SHARES + max(0, number(group / "cpu.weight") - 1) * span // 9999
        return shares / 1024 if shares > MIN_SHARES else 0.0

    def _set_cpu_weight(self, group: Path, cores: float) -> None:
        """Set a group's CPU weight from its request, as the kubelet does."""
        shares = min(MAX_SHARES, max(MIN_SHARES, int(cores * 1024)))
        if self.version == 2:
            _write(group / "cpu.weight", str(1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)))
        else:
            _write(group / "cpu.shares", str(shares))

    def _limit_cpu(self, group: Path, cores: float | None) -> None:
        quota = max(MIN_QUOTA, int(cores * PERIOD_MICROSECONDS)) if cores else None
        if self.version == 2:
            _write(group / "cpu.max", f"{quota or 'max'} {PERIOD_MICROSECONDS}")
        else:
            _write(group / "cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
            _write(group / "cpu.cfs_quota_us", str(quota or -1))

    def _limit_memory(self, group: Path, size: int | None, *, oom_group: bool = True) -> None:
        """Limit memory, and swap with it, which Kubernetes' limits do not cover.

        Args:
            oom_group: Let the OOM killer kill all processes of the group (``memory.oom.group``).
        """
        if self.version == 2:
            _write(group / "memory.max", str(size or "max"))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", str(int(oom_group)))):
                with contextlib.suppress(OSError):
                    _write(group / name, value)
            return
        plain, with_swap = group / "memory.limit_in_bytes", group / "memory.memsw.limit_in_bytes"
        # The limit with swap may never be below the other: it is raised first, lowered last.
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
            for group in [*_children_first(directory), directory]:
                _remove_group(group)
            if time.monotonic() > deadline:
                break
            if directory.is_dir():  # the kernel takes a moment to remove the last process
                time.sleep(REMOVAL_POLL_SECONDS)


def _pod_uid(identity: str) -> str:
    """Get the uid of a container's pod."""
    return identity.split(".")[0]


def _children_first(group: Path) -> list[Path]:
    """List the groups below a group, children before their parents."""
    groups = [Path(directory) for directory, _, _ in os.walk(group, topdown=False)]
    return groups[:-1]


def _create(group: Path) -> None:
    """Create a group that its container may read, whatever the umask."""
    group.mkdir(exist_ok=True)
    group.chmod(0o755)


def _remove_group(group: Path) -> bool:
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
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
