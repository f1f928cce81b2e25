"""Overload: whether the machine has enough memory, disk, processes and CPU time for its virtual nodes.

A kubelet reports pressure when pods must be evicted. This warns earlier, about the machine: pressure stall
information, its control group's counters, a kubelet's signals. ``doctor`` and ``status`` show it.

Source: https://docs.kernel.org/accounting/psi.html
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from localkube.kubelet.resources.pressure import Observation, observe

# The percentage of a minute in which some task waited for the processor, or all tasks for memory or disk.
STALLS = {"cpu": ("some", 80.0), "memory": ("full", 10.0), "io": ("full", 40.0)}
STALLED = {
    "cpu": (
        "time",
        "{share:.0f} % of the last minute programs waited for a processor",
        "fewer nodes, runs or programs at a time",
    ),
    "memory": (
        "memory",
        "{share:.0f} % of the last minute everything waited for memory",
        "end programs, or give pods memory=",
    ),
    "io": (
        "disk",
        "{share:.0f} % of the last minute everything waited for the disk",
        "end what reads and writes most",
    ),
}
THRESHOLDS = {  # the fraction of the capacity below which it is reported
    "memory.available": (0.05, "memory", "end programs and runs that need most of it"),
    "nodefs.available": (0.05, "disk", "free space: `python -m localkube cache`, old volumes and clusters"),
    "nodefs.inodesFree": (0.05, "disk (inodes)", "delete small files: old volumes and clusters"),
    "pid.available": (
        0.1,
        "processes",
        "fewer data loader workers and threads, or a higher limit (pid_max, ulimit -u)",
    ),
}
LITTLE_DISK = 2 << 30
THROTTLED = 0.5


@dataclass(frozen=True)
class Overload:
    """A resource that the machine is short of.

    Attributes:
        resource: ``memory``, ``disk``, ``processes`` or ``time``.
        what: The measurement, in words.
        fix: What to do.
    """

    resource: str
    what: str
    fix: str


def overloads(
    place: Path, *, processes: int, proc: Path = Path("/proc"), group: Path | None = None
) -> list[dict[str, str]]:
    """List the resources that the machine is short of.

    Args:
        place: A path on the disk of the clusters.
        processes: The machine's limit of processes.
        proc: The mount point of /proc.
        group: The directory of this process' control group; by default that of /proc/self/cgroup.
    """
    short = [*_stalls(proc / "pressure"), *_short_resources(observe(place, processes=processes))]
    short += _group(group or own_group(proc))
    return [asdict(item) for item in short]


def _stalls(pressure: Path) -> list[Overload]:
    items = []
    for name, (kind, limit) in STALLS.items():
        share = _share(pressure / name, kind)
        if share >= limit:
            resource, message, fix = STALLED[name]
            items.append(Overload(resource, message.format(share=share), fix))
    return items


def _share(file: Path, kind: str) -> float:
    """Read the share of the last minute from pressure stall information; 0 if the kernel has none."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        fields = next(line[1:] for line in lines if line[0] == kind)
        return float(dict(field.split("=") for field in fields)["avg60"])
    except (OSError, ValueError, LookupError, StopIteration):
        return 0.0


def _short_resources(observations: dict[str, Observation]) -> list[Overload]:
    items = []
    for signal, (least, resource, fix) in THRESHOLDS.items():
        if (observation := observations.get(signal)) is None or not observation.capacity:
            continue
        little = observation.available < LITTLE_DISK if signal == "nodefs.available" else False
        if little or observation.available < least * observation.capacity:
            left = (
                f"{observation.available >> 20} MiB"
                if observation.capacity > 1 << 30
                else str(observation.available)
            )
            percent = 100 * observation.available / observation.capacity
            items.append(Overload(resource, f"{left} of it are left, {percent:.0f} %", fix))
    return items


def own_group(proc: Path = Path("/proc")) -> Path:
    """Find the directory of this process' control group, of version 2."""
    lines = (proc / "self" / "cgroup").read_text().splitlines()
    path = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), "/")
    return Path("/sys/fs/cgroup") / path.lstrip("/")


def _group(group: Path) -> list[Overload]:
    """Read the counters of a control group that limits this machine, such as a container's."""
    items = []
    events, cpu = _counters(group / "memory.events"), _counters(group / "cpu.stat")
    if killed := events.get("oom_kill", 0):
        what = f"{killed} processes were killed since the container's start because its memory was full"
        items.append(Overload("memory", what, "give the container more memory, or pods less"))
    if (periods := cpu.get("nr_periods", 0)) and cpu.get("nr_throttled", 0) > THROTTLED * periods:
        share = 100 * cpu["nr_throttled"] // periods
        what = f"its control group's CPU limit held it back in {share} % of the periods"
        items.append(Overload("time", what, "raise the container's CPU limit, or use fewer nodes"))
    if refused := _counters(group / "pids.events").get("max", 0):
        what = f"{refused} processes could not be started: the control group's limit"
        items.append(Overload("processes", what, "raise the container's limit of processes (pids)"))
    return items


def _counters(file: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
