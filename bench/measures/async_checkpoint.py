"""A training step while a checkpoint of 90 MB is being written, beside one while none is. No cluster.

The steps of both sides take turns in one process, so what else the machine does falls on both.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.peers import checkpoint_steps
from bench.results import Limit, Result
from kitlib import config

LIMIT = Limit(1.1)
TURNS, QUICK_TURNS = 2, 1  # of each round
SECONDS = 600


def measure(lab: Lab) -> list[Result]:
    """Train for a while, saving again and again."""
    lab.clear()
    threads = len(os.sched_getaffinity(0))
    turns = lab.rounds * (QUICK_TURNS if lab.quick else TURNS)
    lab.report(f"training with {threads} threads, and saving {turns} times")
    said = _run(lab.folder / "checkpoints", turns=turns, threads=threads)
    sizes = {report["bytes"] for report in said}
    return [
        Result(
            what=f"step while a checkpoint of {max(sizes) / 1e6:.0f} MB is written, ResNet-18, "
            f"1 process × {threads} threads",
            unit="s",
            ours=tuple(report["saving"] for report in said),
            peer="the same step while none is",
            theirs=tuple(report["plain"] for report in said),
            limit=LIMIT,
            details={name: [report[name] for report in said] for name in ("steps", "seconds", "waited")},
        )
    ]


def _run(folder: Path, *, turns: int, threads: int) -> list[dict[str, Any]]:
    program = Path(checkpoint_steps.__file__)
    flags = [f"--checkpoints={config.find('trainers/checkpoints.py')}", f"--folder={folder}"]
    done = subprocess.run(
        [sys.executable, str(program), *flags, f"--turns={turns}"],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise MeasureFailed(f"the training failed: {' | '.join(done.stderr.splitlines()[-3:])}")
    return [json.loads(line) for line in done.stdout.splitlines()]
