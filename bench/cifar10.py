"""Images in CIFAR-10's format for the measures, and the two programs that train on them.

The pixels are noise: speed does not depend on what they show. Not here: data that can be learnt from, which
``kit.prepare_dataset`` makes.
"""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench import torchrun
from bench.lab import Lab
from bench.peers import cifar10_plain
from kitlib import settings

TRAINER = "trainers/cifar10_ddp.py"
FILES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
IN_A_FILE = 10_000
CLASSES = [f"class {number}" for number in range(10)]


def make(folder: Path) -> Path:
    """Return the folder of a whole data set, 50,000 images and 10,000, made if it is not there.

    Args:
        folder: Where; 180 MB.
    """
    place = folder / "cifar10"
    if not (place / "dataset.json").exists():
        inside = place / "cifar-10-batches-py"
        inside.mkdir(parents=True, exist_ok=True)
        dice = np.random.default_rng(0)
        for name in FILES:
            pixels = dice.integers(0, 256, (IN_A_FILE, 3072), dtype=np.uint8)
            labels = dice.integers(0, 10, IN_A_FILE).tolist()
            # The original's keys are Python 2's: read as bytes by some, as text by others.
            batch = {"data": pixels, b"data": pixels, "labels": labels, b"labels": labels}
            (inside / name).write_bytes(pickle.dumps(batch))
        (inside / "batches.meta").write_bytes(pickle.dumps({"label_names": CLASSES}))
        about = {"name": "cifar10", "synthetic": True, "classes": CLASSES}
        about |= {"train_images": 5 * IN_A_FILE, "test_images": IN_A_FILE}
        (place / "dataset.json").write_text(json.dumps(about))
    return place


def ours(
    lab: Lab, *, ranks: int = 1, threads: int = 1, folder: Path | None = None, **flags: object
) -> Callable[[], float]:
    """Return what trains by our trainer once and answers with images a second.

    Args:
        lab: Whose data set it is.
        ranks: How many processes.
        threads: Of each.
        folder: Where it runs; two at the same time need two.
        flags: The trainer's, with underscores; a flag without a value has the value None.
    """
    own = {"log-every": 1000}
    return _side(lab, settings.find(TRAINER), own | flags, ranks=ranks, threads=threads, folder=folder)


def plain(lab: Lab, *, threads: int, **flags: object) -> Callable[[], float]:
    """Return what trains by the usual loader and loop once and answers with images a second."""
    own = {"trainer": settings.find(TRAINER)}
    return _side(lab, Path(cifar10_plain.__file__), own | flags, ranks=1, threads=threads)


def _side(
    lab: Lab, program: Path, flags: dict, *, ranks: int, threads: int, folder: Path | None = None
) -> Callable[[], float]:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    given["data-dir"] = make(lab.folder)

    def once() -> float:
        place = folder or lab.folder
        lines = torchrun.run(program, folder=place, ranks=ranks, threads=threads, flags=given)
        return torchrun.images_per_s(lines, ranks=ranks)

    return once
