"""Small data sets of random numbers, in the formats that public programs read."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
TEXT = "to be or not to be that is the question\n" * 400


def mnist(folder: Path) -> None:
    """The files of MNIST as torchvision keeps them: yann.lecun.com's IDX format."""
    (folder / "raw").mkdir()
    for split, count in (("train", 600), ("t10k", 200)):
        pixels = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(0, 10, count, dtype=np.uint8)
        for kind, values in (("images", pixels), ("labels", labels)):
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            path = folder / "raw" / f"{split}-{kind}-idx{values.ndim}-ubyte"
            path.write_bytes(header + values.tobytes())


def images(folder: Path) -> None:
    """Two classes of images for training and validation, as ImageFolder reads them."""
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for index in range(8):
                pixels = RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")


def text(folder: Path) -> None:
    """Words for language models: train.txt, valid.txt, test.txt, input.txt."""
    for name in ("train", "valid", "test", "input"):
        (folder / f"{name}.txt").write_text(TEXT)


MAKERS: dict[str, Callable[[Path], None]] = {
    "MNIST": mnist,
    "images": images,
    "text": text,
}
