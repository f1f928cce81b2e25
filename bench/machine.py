"""The machine of a benchmark run, and its load."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import psutil

QUIET, BUSY = (
    1.0,
    2.0,
)  # load averages: measures wait for the first; figures above the second are not published
QUIET_SECONDS, PERIOD_SECONDS = (
    300.0,
    5.0,
)  # the longest wait; the kernel computes the average every five seconds
SAMPLE_SECONDS, LOOP = 2.0, 2_000_000
IDLE_PERCENT, IDLE_SECONDS = 10.0, 60.0  # of all cores; the longest wait


@dataclass(frozen=True)
class Machine:
    """The properties that figures depend on, without the name of the machine or its user."""

    cores: int
    memory_gb: float
    processor: str
    system: str
    python: str
    torch: str
    root: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    """Return the properties of this machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(pages * size / 1e9, 1),
        processor=_processor(),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        torch=metadata.version("torch"),
        root=os.geteuid() == 0,
    )


@dataclass(frozen=True)
class State:
    """The machine's state just before a measure.

    Attributes:
        load: The load average of the last minute, including this run.
        busy_percent: The use of all cores while this run is idle.
        loop_seconds: The duration of a fixed Python loop, as the speed of shared machines varies.
    """

    load: float
    busy_percent: float
    loop_seconds: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def wait_until_quiet(report: Callable[[str], None]) -> None:
    """Wait until the load average is below `QUIET`, for at most `QUIET_SECONDS`."""
    end = time.monotonic() + QUIET_SECONDS
    if os.getloadavg()[0] >= QUIET:
        report(f"waiting for a load average below {QUIET:g}, at most {QUIET_SECONDS:g} s")
    while os.getloadavg()[0] >= QUIET and time.monotonic() < end:
        time.sleep(PERIOD_SECONDS)


def wait_until_idle(report: Callable[[str], None]) -> None:
    """Wait until the cores had little to do for two seconds, for at most `IDLE_SECONDS`."""
    end = time.monotonic() + IDLE_SECONDS
    while (busy := psutil.cpu_percent(interval=SAMPLE_SECONDS)) >= IDLE_PERCENT and time.monotonic() < end:
        report(f"waiting for an idle machine, now {busy:g}% busy")


def read_state() -> State:
    """Return the machine's current state, within three seconds."""
    busy = psutil.cpu_percent(interval=SAMPLE_SECONDS)
    loop = statistics.median(_loop() for _ in range(3))
    return State(round(os.getloadavg()[0], 2), busy, round(loop, 3))


def _loop() -> float:
    start, total = time.perf_counter(), 0
    for number in range(LOOP):
        total += number
    return time.perf_counter() - start


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
