"""Images a second on a GPU, CIFAR-10's format: our recipe beside PyTorch's ImageNet example, one net.

Without a GPU there is nothing to measure, and the run says so.
"""

import os

import torch

from bench import cifar10
from bench.errors import NotHere
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

BATCH, EPOCHS, MOST_WORKERS = 512, 3, 16
LIMIT = Limit(3.0, at="least")
PEER = "PyTorch's ImageNet example, the same net"


def measure(lab: Lab) -> list[Result]:
    """Train on each side in turns, on one GPU.

    Raises:
        NotHere: There is no GPU.
    """
    if not torch.cuda.is_available():
        raise NotHere("there is no GPU")
    lab.clear()
    threads = len(os.sched_getaffinity(0))
    same: dict[str, object] = {"model": "resnet9", "epochs": EPOCHS, "batch_size": BATCH}
    workers = min(threads, MOST_WORKERS)
    samples = alternate(
        {
            "ours": cifar10.ours(lab, same, threads=threads),
            "theirs": cifar10.plain(lab, same | {"workers": workers, "transforms": "imagenet"}, threads=1),
        },
        lab.rounds,
    )
    return [
        Result(
            what=f"CIFAR-10 format, ResNet-9, one {torch.cuda.get_device_name()}, batch {BATCH}",
            unit="images/s",
            ours=tuple(samples["ours"]),
            peer=PEER,
            theirs=tuple(samples["theirs"]),
            limit=LIMIT,
        )
    ]
