"""Pressure on the machine: the signals of node-pressure eviction, their thresholds, and the node conditions.

All nodes of a cluster are on one machine, so they share its pressure.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localkube.api_path import Object
from localkube.kubelet.quantity import whole

# The node condition of each signal, and the resource that is reclaimed.
SIGNALS = {
    "memory.available": ("MemoryPressure", "memory"),
    "nodefs.available": ("DiskPressure", "ephemeral-storage"),
    "nodefs.inodesFree": ("DiskPressure", "inodes"),
    "pid.available": ("PIDPressure", "pids"),
}
CRITICAL = 2_000_000_000
# A kubelet's defaults, and a twentieth of the processes, for which it has none. A kubelet's tenth of the disk
# is meant for nodes' disks: of a workstation's large disk, it is more than a cluster needs.
MAX_DISK = 5 << 30
HARD = "memory.available<100Mi,nodefs.available<{disk},nodefs.inodesFree<5%,pid.available<5%"
TRANSITION_SECONDS = 300.0
_LIMITED = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def default_thresholds(disk: int) -> str:
    """Compute the default hard thresholds, for a disk of this size in bytes."""
    return HARD.format(disk="10%" if disk // 10 < MAX_DISK else f"{MAX_DISK >> 30}Gi")


@dataclass(frozen=True)
class Observation:
    """The capacity of a resource, and how much of it is available."""

    available: int
    capacity: int


@dataclass(frozen=True)
class Threshold:
    """A hard eviction threshold, met while less than ``value`` is available: a quantity or a percentage."""

    signal: str
    value: str

    def quantity(self, capacity: int) -> int:
        if self.value.endswith("%"):
            return int(capacity * float(self.value[:-1]) / 100)
        return whole(self.value)

    def is_met(self, observation: Observation) -> bool:
        return observation.available < self.quantity(observation.capacity)


def parse_thresholds(text: str) -> tuple[Threshold, ...]:
    """Parse thresholds as those of a kubelet's ``--eviction-hard``.

    Example:
        >>> parse_thresholds("memory.available<100Mi,nodefs.available<10%")[1]
        Threshold(signal='nodefs.available', value='10%')
    """
    return tuple(_threshold(part) for part in text.split(",") if part)


def _threshold(text: str) -> Threshold:
    signal, separator, value = text.partition("<")
    if signal not in SIGNALS or not separator:
        raise ValueError(
            f"{text!r} is not a threshold such as memory.available<100Mi, of {', '.join(SIGNALS)}"
        )
    if value.endswith("%") and re.fullmatch(r"\d+(\.\d+)?", value[:-1]):
        return Threshold(signal, value)
    whole(value)
    return Threshold(signal, value)


def observe(place: Path, *, processes: int) -> dict[str, Observation]:
    """Measure the machine.

    Args:
        place: A path on the disk of the nodes.
        processes: The machine's limit of processes and threads.
    """
    disk = os.statvfs(place)
    observations = {
        "memory.available": _memory(),
        "nodefs.available": Observation(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize),
        "pid.available": Observation(processes - running_processes(), processes),
    }
    if disk.f_files:  # some file systems create inodes on demand
        observations["nodefs.inodesFree"] = Observation(disk.f_ffree, disk.f_files)
    return observations


def _memory() -> Observation:
    """Memory outside of the working set: free memory, and inactive pages of files."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kibibytes = {fields[0].rstrip(":"): int(fields[1]) for fields in lines}
    free = kibibytes["MemFree"] + kibibytes["Inactive(file)"]
    observations = [Observation(free * 1024, kibibytes["MemTotal"] * 1024)]
    for directory, limit, usage, idle in _LIMITED:
        group = Path(directory)
        try:
            maximum, used = int((group / limit).read_text()), int((group / usage).read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # there is no such group, or it is not limited
            continue
        if maximum < observations[0].capacity:
            observations.append(Observation(maximum - max(0, used - int(statistics[idle])), maximum))
    return min(observations, key=lambda observed: observed.available)


def running_processes() -> int:
    """Count the processes and threads of the machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])


class Pressure:
    """The state of the machine: which thresholds are met, and which conditions its nodes report.

    Args:
        transition: Seconds for which a condition is kept after its last threshold was met.
        observe: Measures the machine.
    """

    def __init__(
        self,
        thresholds: tuple[Threshold, ...] = (),
        *,
        transition: float = TRANSITION_SECONDS,
        observe: Callable[[], Mapping[str, Observation]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._thresholds, self._transition = thresholds, transition
        self._observe, self._clock = observe, clock
        self._last: dict[str, float] = {}
        self.conditions: frozenset[str] = frozenset()

    def measure(self) -> list[tuple[Threshold, Observation]]:
        """Measure the machine; return the thresholds that are met, memory's first."""
        observations, now = self._observe(), self._clock()
        observed = [
            (threshold, observations[threshold.signal])
            for threshold in self._thresholds
            if threshold.signal in observations
        ]
        met = [
            (threshold, observation) for threshold, observation in observed if threshold.is_met(observation)
        ]
        self._last |= {SIGNALS[threshold.signal][0]: now for threshold, _ in met}
        self.conditions = frozenset(
            kind for kind, last in self._last.items() if now == last or now - last < self._transition
        )
        return sorted(met, key=lambda pair: pair[0].signal != "memory.available")

    def refusal(self, pod: Object) -> str | None:
        """Explain why a new pod is not admitted, with the kubelet's message; None if it is."""
        if not self.conditions or is_critical(pod):
            return None
        if self.conditions == {"MemoryPressure"}:
            best_effort = (pod.get("status") or {}).get("qosClass") == "BestEffort"
            if not best_effort or any(map(_tolerates_memory_pressure, pod["spec"].get("tolerations") or ())):
                return None
        return f"The node had condition: [{' '.join(sorted(self.conditions))}]. "


def is_critical(pod: Object) -> bool:
    return (pod["spec"].get("priority") or 0) >= CRITICAL


def _tolerates_memory_pressure(toleration: Object) -> bool:
    key = toleration.get("key") or ""
    fits = key == "node.kubernetes.io/memory-pressure" or (not key and toleration.get("operator") == "Exists")
    return fits and toleration.get("effect") in (None, "", "NoSchedule")
