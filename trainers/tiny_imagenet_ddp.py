# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "pillow>=12", "torch>=2.15", "torchvision>=0.29"]
# ///
"""Classify the photographs of tiny-imagenet-200, or of your own folder, with a ResNet from torchvision.

The loop is that of ``cifar10_ddp.py``. New are images in files, a folder for each class, and larger networks.
Each rank decodes all images once, at the start, and keeps them as bytes: 1.2 GB for the whole data set.

    python trainers/tiny_imagenet_ddp.py --data-dir data/tiny-imagenet-200 --limit 2000
    torchrun --nproc-per-node 2 trainers/tiny_imagenet_ddp.py --data-dir data/tiny-imagenet-200 --limit 2000
    torchrun trainers/tiny_imagenet_ddp.py --model resnet50 --limit 0 --epochs 20    # on a GPU

The folder has ``dataset.json``, and ``train`` and ``val`` (or ``test``), also within ``tiny-imagenet-200``.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``. Other lines are
readable, as in the walk-throughs.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from cifar10_ddp import complete, make_parser, prepare, train_epoch
from PIL import Image
from torch import Tensor, nn
from torchvision import models

# Settings ---------------------------------------------------------------------------------------------------

SIDE = 64  # pixels; images of other sizes are resized
ENDINGS = (".jpeg", ".jpg", ".png")
# pad: maximum shift of a crop, in pixels; hole: side of the blanked square; smoothing: of the labels.
RECIPES = dict.fromkeys(("resnet18", "resnet50", "resnet101"), {"pad": 8, "hole": 0, "smoothing": 0.1})


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags, which are those of ``cifar10_ddp.py``; the defaults are small enough for a CPU."""
    parser = make_parser(RECIPES)
    parser.set_defaults(data_dir=Path("data/tiny-imagenet-200"), epochs=2, batch_size=64, limit=2000)
    return parser.parse_args(argv)


# Data -------------------------------------------------------------------------------------------------------


def read_folders(folder: Path, *, train: bool, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Read images as bytes (n x 64 x 64 x 3) and their labels: the alphabetical index of their folder.

    With a ``limit``, take the same number of images from every class.
    """
    inner = folder / "tiny-imagenet-200"
    inside = inner if inner.is_dir() else folder
    place = next(
        (inside / part for part in (["train"] if train else ["val", "test"]) if (inside / part).is_dir()),
        None,
    )
    if place is None:
        raise SystemExit(f"{inside} has no folder {'train' if train else 'val'}; prepare the dataset again")
    classes = sorted(path for path in place.iterdir() if path.is_dir())
    paths, labels = [], []
    for number, folder in enumerate(classes):
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
        files = files[: -(-limit // len(classes)) or None]
        paths += files
        labels += [number] * len(files)

    def read(path: Path) -> Tensor:
        try:
            with Image.open(path) as image:
                return torch.from_numpy(np.array(image.convert("RGB").resize((SIDE, SIDE))))
        except OSError as error:
            raise SystemExit(f"{path} cannot be read as an image; prepare the dataset again") from error

    images = torch.empty(len(paths), SIDE, SIDE, 3, dtype=torch.uint8)
    with ThreadPoolExecutor(4) as pool:
        for index, image in enumerate(pool.map(read, paths)):
            images[index] = image
    return images, torch.tensor(labels)


# Model ------------------------------------------------------------------------------------------------------


def make_model(name: str, classes: int) -> nn.Module:
    """Return one of torchvision's networks, untrained."""
    return models.get_model(name, num_classes=classes)


def main(argv: list[str] | None = None) -> None:
    """Train as in ``cifar10_ddp.py``, with these images and networks."""
    settings, began = parse_settings(argv), time.perf_counter()
    training = prepare(settings, read_dataset=read_folders, build_model=make_model)
    for epoch in range(settings.epochs):
        train_epoch(training, epoch)
    complete(training, began=began)


if __name__ == "__main__":
    main()
