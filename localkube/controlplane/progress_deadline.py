"""A deadline for missing progress, like a Deployment's ``progressDeadlineSeconds``.

A control plane may take ten times as long to start on a busy machine. So only those seconds count in which
nothing changed and no component ran, or waited for a core or the disk, by the kernel's account in
``/proc/PID/task/TID/schedstat``.

How long a control plane takes to start is a measure of the machine: where others want the cores, it takes ten
times as long as alone. So only those seconds count in which nothing changed and no part ran, or waited for a
core or the disk. The kernel keeps account of that in ``/proc/PID/task/TID/schedstat``: a busy program wants
all of an interval, however little it gets; one that stands still, or only polls, wants next to none.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SECONDS = 60.0
# Parts that are at work, and never change anything, are given up as well: after so many times the deadline.
LONGEST = 15
# A part that ends at once has done so this often within ten seconds.
MOST_DEATHS = 5
BUSY_SHARE = 0.5
# A longer interval means that nobody looked: this process was held up itself.
MOST_INTERVAL = 2.0
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CrashCount:
    """How often a component ended right after its start, and its last exit code (negative for a signal)."""

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
        seconds: How long it may stand still.
        never_idle: Parts with timers of their own: one of these that does not run at all is at fault.

    Example:
        >>> deadline = ProgressDeadline(2, never_idle=["etcd"])
        >>> looks = [{"etcd": 1.0}, {"etcd": 0.0}, {"etcd": 0.0}]
        >>> [deadline.look("starting", 1.0, wanted) is None for wanted in looks]
        [True, True, False]
    """

    def __init__(self, seconds: float = SECONDS, *, never_idle: Iterable[str] = ()) -> None:
        self.seconds = seconds
        self._never_idle = frozenset(never_idle)
        self._far: object = None
        self._unchanged = self._quiet = 0.0
        self._still: dict[str, float] = {}
        self._deaths: dict[str, int] = {}

    def look(
        self,
        far: object,
        interval: float,
        wanted: Mapping[str, float],
        deaths: Mapping[str, CrashCount] | None = None,
    ) -> Stall | None:
        """Take a sample; return the reason once there is no more progress.

        Args:
            far: How far it has come; another value than the last time's is progress.
            interval: Seconds since the last look.
            wanted: For each part that runs, the seconds of these in which it ran, or waited to.
            deaths: Of the parts that have ended.
        """
        deaths = deaths or {}
        if far != self._far:
            self._far, self._unchanged, self._quiet = far, 0.0, 0.0
            self._deaths = {part: death.count for part, death in deaths.items()}
        seconds = min(interval, MOST_INTERVAL)
        self._unchanged += seconds
        if sum(wanted.values()) < BUSY_SHARE * interval:
            self._quiet += seconds
        self._still = {
            part: 0.0 if wanted[part] else self._still.get(part, 0.0) + seconds
            for part in self._never_idle & wanted.keys()
        }
        return self._judge(deaths)

    def _judge(self, deaths: Mapping[str, CrashCount]) -> Stall | None:
        for part, death in deaths.items():
            if death.count - self._deaths.get(part, 0) >= MOST_DEATHS:
                how = f"with status {death.code}" if death.code >= 0 else f"by signal {-death.code}"
                return Stall(f"{part} has ended at once {death.count} times, the last time {how}", part)
        part = max(self._still, key=self._still.__getitem__, default=None)
        if part and self._still[part] >= self.seconds:
            return Stall(f"{part} stands still: it has not run for {self.seconds:g} s", part)
        if self._quiet >= self.seconds:
            return Stall(f"nothing has changed, and no part had work, for {self.seconds:g} s")
        if self._unchanged >= LONGEST * self.seconds:
            return Stall(f"its parts are at work, and changed nothing for {LONGEST * self.seconds:g} s")
        return None


class Activity:
    """Samples how much CPU programs want."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._threads: dict[tuple[int, int], float] = {}

    def look(self, programs: Mapping[str, Iterable[int]]) -> tuple[float, dict[str, float]]:
        """Sample: seconds since the last one, and how many of them each program ran or waited to run."""
        now = time.monotonic()
        interval, self._at = now - self._at, now
        wanted, threads = {}, {}
        for name, pids in programs.items():
            found = {(pid, thread): _want(pid, thread) for pid in pids for thread in _threads(pid)}
            wanted[name] = sum(
                max(0.0, spent - self._threads.get(key, 0.0)) for key, (spent, _) in found.items()
            )
            if any(waits for _, waits in found.values()):  # it is charged only when the wait is over
                wanted[name] = max(wanted[name], interval)
            threads |= {key: spent for key, (spent, _) in found.items()}
        self._threads = threads
        return interval, wanted


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _want(pid: int, thread: int) -> tuple[float, bool]:
    """Seconds that a thread has run or waited for a core, and whether it does so now."""
    folder = f"/proc/{pid}/task/{thread}"
    try:
        fields = _read(f"{folder}/stat").rpartition(b") ")[2].split()
    except OSError:  # it has ended
        return 0.0, False
    try:
        ran, waited, _ = _read(f"{folder}/schedstat").split()
        seconds = (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):  # a kernel without: what it ran must do
        seconds = (int(fields[11]) + int(fields[12])) * TICK_SECONDS
    return seconds, fields[0] in (b"R", b"D")


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(4096)


def machine_load() -> str:
    """Describe the load: ``load 7.2 on 2 cores``."""
    cores = len(os.sched_getaffinity(0))
    return f"load {os.getloadavg()[0]:.1f} on {cores} core{'s' if cores > 1 else ''}"
