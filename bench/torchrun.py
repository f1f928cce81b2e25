"""Run programs with a bare ``torchrun`` on this machine, and read their speed from their epochs.

It does not use the kit: it is the peer in a comparison, or runs both sides if two programs are compared.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.errors import MeasureFailed
from kitlib.metrics import events

RUN_SECONDS = 900
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def run(
    program: Path, *, folder: Path, ranks: int = 1, threads: int = 1, flags: Mapping[str, object]
) -> list[str]:
    """Run a program with ``torchrun --nproc-per-node RANKS``; return its output lines.

    Args:
        program: The file.
        folder: The working directory, in which its output is kept.
        ranks: The number of processes.
        threads: The threads of each process.
        flags: The program's; a flag without a value has the value None.

    Raises:
        MeasureFailed: It failed; the error has the end of its output.
    """
    command = [
        str(Path(sys.executable).with_name("torchrun")),
        f"--nproc-per-node={ranks}",
        f"--master-port={free_port()}",
        str(program),
        *(f"--{name}" if value is None else f"--{name}={value}" for name, value in flags.items()),
    ]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= dict.fromkeys(THREADS, str(threads)) | {"PYTHONUNBUFFERED": "1"}
    output = folder / "torchrun.log"
    with output.open("wb") as file:
        process = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=RUN_SECONDS,
            check=False,
        )
    lines = output.read_text(errors="replace").splitlines()
    if process.returncode:
        errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line] or lines
        raise MeasureFailed(
            f"torchrun {program.name} ended with {process.returncode}: {' | '.join(errors[-3:])}"
        )
    return lines


def images_per_s(lines: Iterable[str], *, ranks: int = 1) -> float:
    """Return the images per second of all ranks in the last epoch; the first one warms up.

    Raises:
        MeasureFailed: A rank reported fewer than two epochs.
    """
    rates: dict[int, list[float]] = {}
    for event in events.parse(lines):
        if event.event == "epoch":
            rates.setdefault(event.rank, []).append(float(event.fields["images_per_s"]))
    if len(rates) != ranks or min(map(len, rates.values())) < 2:
        raise MeasureFailed(f"{len(rates)} of {ranks} ranks reported an epoch, and each must report two")
    return sum(rate[-1] for rate in rates.values())


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
