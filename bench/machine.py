"""What a run of the benchmarks ran on, and how busy that was: figures mean little without it."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

BUSY = 3.0  # of load average: from here on a figure says as much about the neighbours


@dataclass(frozen=True)
class Machine:
    """The facts that figures depend on; nothing that names the machine or its user."""

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
    """Return the facts of this machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(pages * size / 1e9, 1),
        processor=_processor(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=metadata.version("torch"),
        root=os.geteuid() == 0,
    )


def load() -> float:
    """Return how many processes wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
