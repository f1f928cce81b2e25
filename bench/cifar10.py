"""Images in CIFAR-10's format for the measures, and the two programs that train on them.

The images are synthetic, from ``programs/dataset/prepare_dataset.py``; the speed of training does not depend
on their content.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import torchrun
from bench.errors import MeasureFailed
from bench.lab import Lab
from kitlib import config

TRAINER = "trainers/cifar10_ddp.py"
PREPARE = "programs/dataset/prepare_dataset.py"
PLAIN = Path(__file__).parent / "peers" / "cifar10_plain.py"
IMAGES = 25_600
DRAW_SECONDS = 600


def make(folder: Path, *, images: int = IMAGES) -> Path:
    """Return the folder of a dataset, generated if it is missing.

    Args:
        folder: The parent folder; the dataset is generated once.
        images: The number of training images.

    Raises:
        MeasureFailed: It cannot be generated.
    """
    dataset = folder / "cifar10"
    if not (dataset / "dataset.json").exists():
        command = [sys.executable, str(config.find(PREPARE)), "cifar10", f"--root={folder}"]
        command += ["--source=synthetic", f"--limit={images}"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=DRAW_SECONDS, check=False)
        if process.returncode:
            raise MeasureFailed(
                f"the images could not be generated: {' | '.join(process.stderr.splitlines()[-3:])}"
            )
    return dataset


def ours(
    lab: Lab,
    flags: Mapping[str, object],
    *,
    ranks: int = 1,
    threads: int = 1,
    folder: Path | None = None,
) -> Callable[[], float]:
    """Return a function that trains once with our trainer and returns the images per second.

    Args:
        lab: The lab that holds the dataset.
        flags: The trainer's, with underscores; a flag without a value has the value None.
        ranks: The number of processes.
        threads: The threads of each process.
        folder: The working directory; concurrent runs need separate ones.
    """
    defaults: dict[str, object] = {"log-every": 1000}
    return _side(
        lab, config.find(TRAINER), defaults | dict(flags), ranks=ranks, threads=threads, folder=folder
    )


def plain(lab: Lab, flags: Mapping[str, object], *, threads: int) -> Callable[[], float]:
    """Return a function that trains once with the standard loader and loop, for images per second."""
    options: dict[str, object] = {"trainer": config.find(TRAINER)}
    return _side(lab, PLAIN, options | dict(flags), ranks=1, threads=threads)


def _side(
    lab: Lab, program: Path, flags: dict[str, Any], *, ranks: int, threads: int, folder: Path | None = None
) -> Callable[[], float]:
    options = {name.replace("_", "-"): value for name, value in flags.items()}
    options["data-dir"] = make(lab.folder)

    def once() -> float:
        run_folder = folder or lab.folder
        lines = torchrun.run(program, folder=run_folder, ranks=ranks, threads=threads, flags=options)
        return torchrun.images_per_s(lines, ranks=ranks)

    return once
