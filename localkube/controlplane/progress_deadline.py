"""A deadline for missing progress, like a Deployment's ``progressDeadlineSeconds``.

A control plane may take ten times as long to start on a busy machine. So only those seconds count in which
nothing changed and no component ran, or waited for a core or the disk, by the kernel's account in
``/proc/PID/task/TID/schedstat``.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localkube.runtime.processes import stat_fields

SECONDS = 60.0
# Parts that are at work, and never change anything, are given up as well: after so many times the deadline.
LONGEST = 15
# A part that ends at once has done so this often within ten seconds.
MAX_CRASHES = 5
BUSY_SHARE = 0.5
# A longer interval means that this process was held up itself.
MAX_INTERVAL = 2.0
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CrashCount:
    """The crashes of a component right after its start, and its last exit code (negative for a signal)."""

    count: int
    code: int


@dataclass(frozen=True)
class Stall:
    """Why there is no more progress, and the component at fault if that is certain."""

    reason: str
    part: str | None = None


class ProgressDeadline:
    """Decides at each sample whether a start still makes progress.

    Args:
        seconds: How long there may be no progress.
        never_idle: Components with timers of their own: one of these that does not run at all is at fault.

    Example:
        >>> deadline = ProgressDeadline(2, never_idle=["etcd"])
        >>> samples = [{"etcd": 1.0}, {"etcd": 0.0}, {"etcd": 0.0}]
        >>> [deadline.check("starting", 1.0, sample) is None for sample in samples]
        [True, True, False]
    """

    def __init__(self, seconds: float = SECONDS, *, never_idle: Iterable[str] = ()) -> None:
        self.seconds = seconds
        self._never_idle = frozenset(never_idle)
        self._progress: object = None
        self._unchanged = self._quiet = 0.0
        self._idle_seconds: dict[str, float] = {}
        self._crashes: dict[str, int] = {}

    def check(
        self,
        progress: object,
        interval: float,
        cpu_seconds: Mapping[str, float],
        crashes: Mapping[str, CrashCount] | None = None,
    ) -> Stall | None:
        """Take a sample; return the reason once there is no more progress.

        Args:
            progress: A value that changes with each step of the start.
            interval: Seconds since the last sample.
            cpu_seconds: For each running component, the seconds of these in which it ran or waited to run.
            crashes: The crashes of the components that have ended.
        """
        crashes = crashes or {}
        if progress != self._progress:
            self._progress, self._unchanged, self._quiet = progress, 0.0, 0.0
            self._crashes = {part: crash.count for part, crash in crashes.items()}
        seconds = min(interval, MAX_INTERVAL)
        self._unchanged += seconds
        if sum(cpu_seconds.values()) < BUSY_SHARE * interval:
            self._quiet += seconds
        self._idle_seconds = {
            part: 0.0 if cpu_seconds[part] else self._idle_seconds.get(part, 0.0) + seconds
            for part in self._never_idle & cpu_seconds.keys()
        }
        return self._find_stall(crashes)

    def _find_stall(self, crashes: Mapping[str, CrashCount]) -> Stall | None:
        for part, crash in crashes.items():
            if crash.count - self._crashes.get(part, 0) >= MAX_CRASHES:
                end = f"with status {crash.code}" if crash.code >= 0 else f"by signal {-crash.code}"
                count = f"{crash.count} times, the last time {end}"
                return Stall(f"{part} has ended right after its start {count}", part)
        idlest = max(self._idle_seconds, key=self._idle_seconds.__getitem__, default=None)
        if idlest and self._idle_seconds[idlest] >= self.seconds:
            return Stall(f"{idlest} is stalled: it has not run for {self.seconds:g} s", idlest)
        if self._quiet >= self.seconds:
            return Stall(f"there was no progress, and no component had work, for {self.seconds:g} s")
        if self._unchanged >= LONGEST * self.seconds:
            return Stall(f"its components are busy, but made no progress for {LONGEST * self.seconds:g} s")
        return None


class Activity:
    """Samples how much CPU programs want."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._threads: dict[tuple[int, int], float] = {}

    def sample(self, programs: Mapping[str, Iterable[int]]) -> tuple[float, dict[str, float]]:
        """Sample: seconds since the last one, and how many of them each program ran or waited to run."""
        now = time.monotonic()
        interval, self._at = now - self._at, now
        cpu_seconds: dict[str, float] = {}
        threads: dict[tuple[int, int], float] = {}
        for name, pids in programs.items():
            samples = {(pid, thread): _want(pid, thread) for pid in pids for thread in _threads(pid)}
            cpu_seconds[name] = sum(
                max(0.0, spent - self._threads.get(key, 0.0)) for key, (spent, _) in samples.items()
            )
            if any(waits for _, waits in samples.values()):  # it is charged only when the wait is over
                cpu_seconds[name] = max(cpu_seconds[name], interval)
            threads |= {key: spent for key, (spent, _) in samples.items()}
        self._threads = threads
        return interval, cpu_seconds


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _want(pid: int, thread: int) -> tuple[float, bool]:
    """Seconds that a thread has run or waited for a core, and whether it does so now."""
    task = f"{pid}/task/{thread}"
    if not (fields := stat_fields(task)):  # it has ended
        return 0.0, False
    try:
        ran, waited, _ = Path(f"/proc/{task}/schedstat").read_bytes().split()
        seconds = (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):  # a kernel without: what it ran must do
        seconds = (int(fields[11]) + int(fields[12])) * TICK_SECONDS
    return seconds, fields[0] in (b"R", b"D")


def machine_load() -> str:
    """Describe the load: ``load 7.2 on 2 cores``."""
    cores = len(os.sched_getaffinity(0))
    return f"load {os.getloadavg()[0]:.1f} on {cores} core{'s' if cores > 1 else ''}"
