"""Images in CIFAR-10's format for the measures, and the two programs that train on them.

The images are the stand-ins that ``programs/dataset/prepare_dataset.py`` draws; how fast training is does
not depend on what they show.
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
        folder: Where; its data set is made once.
        images: How many for training.

    Raises:
        MeasureFailed: It cannot be drawn.
    """
    place = folder / "cifar10"
    if not (place / "dataset.json").exists():
        command = [sys.executable, str(config.find(PREPARE)), "cifar10", f"--root={folder}"]
        command += ["--source=synthetic", f"--limit={images}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRAW_SECONDS, check=False)
        if done.returncode:
            raise MeasureFailed(f"no images could be drawn: {' | '.join(done.stderr.splitlines()[-3:])}")
    return place


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
        lab: Whose data set it is.
        flags: The trainer's, with underscores; a flag without a value has the value None.
        ranks: How many processes.
        threads: Of each.
        folder: Where it runs; two at the same time need two.
    """
    own: dict[str, object] = {"log-every": 1000}
    return _side(lab, config.find(TRAINER), own | dict(flags), ranks=ranks, threads=threads, folder=folder)


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
        place = folder or lab.folder
        lines = torchrun.run(program, folder=place, ranks=ranks, threads=threads, flags=options)
        return torchrun.images_per_s(lines, ranks=ranks)

    return once
