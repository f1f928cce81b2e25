"""Create and delete clusters repeatedly, and check that nothing of them remains on the machine."""

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil

import kitlib as kit
from localkube.paths import ClusterPaths
from soak.footprint import Footprint, runs
from soak.resources import command_line

NAME, NODES = "churn", 2


@dataclass(frozen=True)
class MachineCounts:
    """Resources on the machine, of any user, whose increase is examined.

    Attributes:
        processes: Command lines with the state directory.
        files: Files in the state directory and the directory of temporary files.
        mounts: Mounts with the state directory.
        descriptors: Open files of this process.
    """

    processes: tuple[str, ...]
    files: tuple[str, ...]
    mounts: tuple[str, ...]
    descriptors: int

    @classmethod
    def of(cls, state_dir: Path, scratch: Path) -> "MachineCounts":
        gc.collect()  # the connections of unreferenced clients
        lines = [" ".join(command_line(process)) for process in psutil.process_iter() if runs(process)]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        files = [str(path) for folder in (state_dir, scratch) for path in folder.rglob("*") if path.is_file()]
        return cls(
            processes=tuple(line for line in lines if str(state_dir) in line),
            files=tuple(sorted(files)),
            mounts=tuple(line for line in mounts if str(state_dir) in line),
            descriptors=psutil.Process().num_fds(),
        )

    def increases_since(self, earlier: "MachineCounts") -> list[str]:
        """Describe what has increased."""
        leaks = []
        for name in (field.name for field in fields(self)):
            old, new = getattr(earlier, name), getattr(self, name)
            if isinstance(new, int) and new > old:
                leaks.append(f"{name}: {old} became {new}")
            if isinstance(new, tuple):
                leaks += [f"{name}: {process}" for process in new if process not in old]
        return leaks


def churn(cycles: int, *, state_dir: Path, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Create and delete a cluster with a pod repeatedly; return the verdict."""
    problems, durations = [], []
    with tempfile.TemporaryDirectory(prefix="trainyard-churn-") as scratch:
        os.environ |= {"XDG_STATE_HOME": str(state_dir), "TMPDIR": scratch}
        baseline = None
        for number in range(1, cycles + 1):
            start = time.monotonic()
            leftovers = cycle(ClusterPaths(NAME).root)
            durations.append(time.monotonic() - start)
            counts = MachineCounts.of(state_dir, Path(scratch))
            baseline = baseline or counts  # the first cycle creates what later ones reuse
            leftovers += counts.increases_since(baseline)
            problems += [f"cycle {number}: {path}" for path in leftovers]
            report({"what": "cycle", "number": number, "seconds": round(durations[-1], 1), "left": leftovers})
    tenth = max(1, cycles // 10)
    return {
        "cycles": cycles,
        "seconds": {"first": _median(durations[:tenth]), "last": _median(durations[-tenth:])},
        "problems": problems,
    }


def cycle(root: Path) -> list[str]:
    """Create a cluster, run a pod, delete the cluster; return what remains."""
    cluster = kit.create_cluster("local", name=NAME, nodes=NODES, warm=False)
    try:
        container = {"name": "main", "image": "busybox", "command": ["sleep", "600"]}
        cluster.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "steady"},
                "spec": {"containers": [container]},
            }
        )
        cluster.kubectl("wait --for=condition=Ready pod/steady --timeout=120s")
        footprint = Footprint.of(root)
    finally:
        cluster.delete()
    return footprint.leftovers()


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)
