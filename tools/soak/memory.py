"""Memory of kubelet and supervisor, and etcd's size, sampled while the cluster is disturbed."""

import contextlib
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from soak import resources

WATCHED = ("kubelet", "supervisor")
EVERY_SECONDS = 10.0
GROWTH = 1.10
# etcd allocates space in steps, and frees it when it is compacted.
ETCD_GROWTH, ETCD_SLACK = 1.2, 16 * 2**20


@dataclass(frozen=True)
class Sample:
    """Bytes of a process at a time; ``pid`` identifies a restarted one."""

    at: float
    pid: int
    size: int


class Sampler:
    """Samples in a thread until it is closed.

    Args:
        root: The cluster's directory.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._begun, self._closed = root, time.monotonic(), threading.Event()
        self.samples: dict[str, list[Sample]] = {name: [] for name in (*WATCHED, "etcd")}
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Take one sample of each."""
        at = time.monotonic() - self._begun
        for name in WATCHED:
            with contextlib.suppress(psutil.Error, OSError):
                for process in resources.component(self._root, name)[:1]:
                    size = resources.own_memory(process)
                    self.samples[name].append(Sample(at, process.pid, size))
        database = self._root / "etcd" / "member" / "snap" / "db"
        with contextlib.suppress(FileNotFoundError):
            self.samples["etcd"].append(Sample(at, 0, database.stat().st_size))


def growth(samples: Sequence[Sample], *, after: float) -> tuple[int, int] | None:
    """Compare a process's memory after a warm-up with that at the end.

    Args:
        samples: Of one process and its predecessors.
        after: The warm-up in seconds.

    Returns:
        Bytes after the warm-up and at the end, each the median of several samples; None if the process did
        not run for twice the warm-up.
    """
    of_process = [sample for sample in samples if sample.pid == samples[-1].pid]
    start, end, wide = of_process[0].at, of_process[-1].at, max(after / 6, 2 * EVERY_SECONDS)
    if end - start < 2 * after:
        return None
    base = [sample.size for sample in of_process if after <= sample.at - start <= after + wide]
    last = [sample.size for sample in of_process if sample.at >= end - wide]
    return round(statistics.median(base)), round(statistics.median(last))


def grown(name: str, figures: tuple[int, int] | None) -> list[str]:
    """Return a problem if the second figure exceeds the first by more than a tenth, or one is missing."""
    if figures is None:
        return [f"{name} has not run long enough for its memory to be judged"]
    base, last = figures
    return [f"{name} has grown from {base:,} to {last:,} bytes"] if last > base * GROWTH else []


def unbounded(samples: Sequence[Sample]) -> list[str]:
    """Return a problem if the largest size in the last third is far above that in the second."""
    end = samples[-1].at
    second = max(sample.size for sample in samples if end / 3 <= sample.at < 2 * end / 3)
    last = max(sample.size for sample in samples if sample.at >= 2 * end / 3)
    if last <= second * ETCD_GROWTH + ETCD_SLACK:
        return []
    return [f"etcd's database grows: {second:,} bytes at most in the second third, {last:,} in the last"]
