"""Create and delete clusters repeatedly, and check what they leave on the machine."""

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
from soak.resources import words_of

NAME, NODES = "churn", 2


@dataclass(frozen=True)
class MachineCounts:
    """Resources on the machine, of any user, whose increase is examined.

    Attributes:
        processes: Command lines that name the home.
        files: Below the home and the directory of temporary files.
        mounts: That name the home; others on the machine come and go.
        descriptors: Of this process.
    """

    processes: tuple[str, ...]
    files: tuple[str, ...]
    mounts: tuple[str, ...]
    descriptors: int

    @classmethod
    def of(cls, home: Path, scratch: Path) -> "MachineCounts":
        gc.collect()  # the connections of unreferenced clients
        lines = [" ".join(words_of(process)) for process in psutil.process_iter() if runs(process)]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        files = [str(path) for place in (home, scratch) for path in place.rglob("*") if path.is_file()]
        return cls(
            processes=tuple(line for line in lines if str(home) in line),
            files=tuple(sorted(files)),
            mounts=tuple(line for line in mounts if str(home) in line),
            descriptors=psutil.Process().num_fds(),
        )

    def more_than(self, before: "MachineCounts") -> list[str]:
        """Describe what has increased."""
        leaks = []
        for name in (field.name for field in fields(self)):
            old, new = getattr(before, name), getattr(self, name)
            if isinstance(new, int) and new > old:
                leaks.append(f"{name}: {old} became {new}")
            if isinstance(new, tuple):
                leaks += [f"{name}: {process}" for process in new if process not in old]
        return leaks


def churn(cycles: int, *, home: Path, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Create and delete a cluster with a pod repeatedly; return the verdict."""
    problems, took = [], []
    with tempfile.TemporaryDirectory(prefix="trainyard-churn-") as scratch:
        os.environ |= {"XDG_STATE_HOME": str(home), "TMPDIR": scratch}
        before = None
        for number in range(1, cycles + 1):
            start = time.monotonic()
            left = cycle(ClusterPaths(NAME).root)
            took.append(time.monotonic() - start)
            now = MachineCounts.of(home, Path(scratch))
            before = before or now  # what is made once is made in the first
            left += now.more_than(before)
            problems += [f"cycle {number}: {path}" for path in left]
            say({"what": "cycle", "number": number, "seconds": round(took[-1], 1), "left": left})
    tenth = max(1, cycles // 10)
    return {
        "cycles": cycles,
        "seconds": {"first": _median(took[:tenth]), "last": _median(took[-tenth:])},
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
    return footprint.left()


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)
