"""Images a second on CIFAR-10's format, the walk-through's own net: our trainer beside a plain reading of it.

The same net, batch, cores and number of images on both sides. What differs is what the trainer teaches:
images stay bytes in one tensor and a batch is gathered as a whole, and the net multiplies in bfloat16 where
the processor does so by itself. A second line leaves bfloat16 out.
"""

import os

from bench import cifar10
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

BATCH, EPOCHS = 128, 2
IMAGES, QUICK_IMAGES = 6400, 1280
LIMIT = Limit(1.5, at="least")
PEER = "the workshop's loader and loop"


def measure(lab: Lab) -> list[Result]:
    """Train on each side in turns, without a cluster."""
    lab.clear()
    threads = len(os.sched_getaffinity(0))
    images = QUICK_IMAGES if lab.quick else IMAGES
    same: dict[str, object] = {"model": "workshop", "epochs": EPOCHS, "batch_size": BATCH, "limit": images}
    lab.report(f"training on {images} images with {threads} threads")
    samples = alternate(
        {
            "ours": cifar10.ours(lab, same, threads=threads),
            "fp32": cifar10.ours(lab, same | {"no_bf16": None}, threads=threads),
            "theirs": cifar10.plain(lab, same | {"workers": threads}, threads=threads),
        },
        lab.rounds,
    )
    about = f"CIFAR-10 format, the workshop's net, 1 process × {threads} threads, batch {BATCH}"
    return [
        Result(
            what=about + what,
            unit="images/s",
            ours=tuple(samples[side]),
            peer=PEER,
            theirs=tuple(samples["theirs"]),
            limit=limit,
        )
        for side, what, limit in (("ours", "", LIMIT), ("fp32", ", without bfloat16", None))
    ]
