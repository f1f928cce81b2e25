"""What a second rank brings: DistributedDataParallel on 2 × 1 thread beside 1 × 1 thread, images a second.

Each rank has the same batch on both sides (weak scaling). What the machine itself gives is measured beside
it: two ranks that each train alone at the same time, and share nothing but its memory and its clock.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import cifar10
from bench.errors import NotHere
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

BATCH, EPOCHS = 256, 3
IMAGES, QUICK_IMAGES = 12_800, 2560
LIMIT = Limit(1.8, at="least")
PEER = "1 × 1 thread"


def measure(lab: Lab) -> list[Result]:
    """Train with one rank, with two, and with two that do not know of each other, in turns.

    Raises:
        NotHere: There is one core.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise NotHere("there is one core")
    lab.clear()
    images = QUICK_IMAGES if lab.quick else IMAGES
    same = {"model": "small", "epochs": EPOCHS, "batch_size": BATCH, "limit": images}
    lab.report(f"training on {images} images a rank")
    alone = cifar10.ours(lab, same)
    neighbour = cifar10.ours(lab, same, folder=_folder(lab))
    samples = alternate(
        {
            "one": alone,
            "two": cifar10.ours(lab, same | {"limit": 2 * images}, ranks=2),
            "apart": lambda: _at_once(alone, neighbour),
        },
        lab.rounds,
    )
    return [
        Result(
            what=f"CIFAR-10 format, small net, batch {BATCH} a rank, {what}",
            unit="images/s",
            ours=tuple(samples[side]),
            peer=PEER,
            theirs=tuple(samples["one"]),
            limit=limit,
        )
        for side, what, limit in (
            ("two", "DDP on 2 × 1 thread", LIMIT),
            ("apart", "two ranks without each other: what the machine gives", None),
        )
    ]


def _at_once(*sides: Callable[[], float]) -> float:
    with ThreadPoolExecutor(len(sides), thread_name_prefix="rank") as pool:
        return sum(pool.map(lambda side: side(), sides))


def _folder(lab: Lab) -> Path:
    folder = lab.folder / "neighbour"
    folder.mkdir(exist_ok=True)
    return folder
