"""The peer for lost workers: torchft's replica groups of one rank each, and its Lighthouse.

The package is installed into a folder of the run and uses this environment's torch. Heartbeats expire after a
second. The trainer, ``notebooks/scripts/digits_torchft.py``, writes the same events as ours.
"""

import subprocess
import sys
import time
from pathlib import Path

from bench.elastic import Workers
from bench.errors import MeasureFailed, PeerAbsent
from bench.torchrun import free_port

REQUIREMENT = "torchft==0.2.0"
# Its other requirements: torch is that of this environment.
OTHERS = ("opentelemetry-exporter-otlp-proto-http==1.45.2",)
TRAINER = Path(__file__).parent.parent / "notebooks" / "scripts" / "digits_torchft.py"
HEARTBEAT_MS, READY_SECONDS = 1000, 30


def install(folder: Path) -> Path:
    """Install torchft into a folder and return it.

    Raises:
        PeerAbsent: pip cannot install it.
    """
    target = folder / "torchft"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
    for requirements in (("--no-deps", REQUIREMENT), OTHERS):  # pip keeps an existing folder `bin`
        process = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
        if process.returncode:
            raise PeerAbsent(f"pip cannot install {requirements[-1]}: {process.stderr.strip()[-200:]}")
    return target


class ReplicaGroups(Workers):
    """Replica groups of one rank each; the run continues while one is alive.

    Args:
        folder: The folder for output.
        packages: The folder in which torchft is installed.
    """

    def __init__(self, folder: Path, packages: Path) -> None:
        super().__init__(folder, stock=True, nodes="1:8")
        self._packages, self._lighthouse = packages, free_port()
        self._environment |= {
            "PYTHONPATH": str(packages),
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._lighthouse}",
        }

    def __enter__(self) -> "ReplicaGroups":
        flags = ["--min_replicas=1", "--quorum_tick_ms=100", f"--heartbeat_timeout_ms={HEARTBEAT_MS}"]
        flags += [f"--join_timeout_ms={HEARTBEAT_MS}", f"--bind=127.0.0.1:{self._lighthouse}"]
        self._start([str(self._packages / "bin" / "torchft_lighthouse"), *flags], "lighthouse")
        log, deadline = self._folder / "lighthouse.log", time.monotonic() + READY_SECONDS
        while "listening" not in log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                raise MeasureFailed(
                    f"the Lighthouse does not listen: {log.read_text(errors='replace')[-300:]}"
                )
            time.sleep(0.1)
        return self

    def add(self, count: int) -> float:
        """Start some groups; return the time."""
        started_at = time.time()
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        for _ in range(count):
            number = len(self._processes) - 1
            command = [
                *("env", f"REPLICA_GROUP_ID={number}", torchrun, "--nproc-per-node=1"),
                *(f"--master-port={free_port()}", str(TRAINER), "--steps=1000000", "--step-seconds=0.1"),
            ]
            self._start(command, f"node-{number}")
        return started_at
