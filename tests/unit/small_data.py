"""Data sets of a few images in the standard formats, for trainers under test: learnable, made in no time."""

import json
import pickle
import struct
from pathlib import Path

import numpy as np

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def _write_description(folder: Path, name: str, classes: list[str], train: int, test: int) -> Path:
    about = {"name": name, "synthetic": True, "classes": classes, "train_images": train, "test_images": test}
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder


def write_cifar10(folder: Path, *, train: int = 200, test: int = 50) -> Path:
    """Write five training batches and a test batch whose classes differ by their colour, under noise."""
    dice = np.random.default_rng(0)
    colours = dice.integers(40, 216, (10, 3, 1, 1))
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name, count in [(f"data_batch_{number}", train // 5) for number in range(1, 6)] + [
        ("test_batch", test)
    ]:
        labels = dice.permutation(np.arange(count) % 10)
        pixels = (colours[labels] + dice.normal(0, 25, (count, 3, 32, 32))).clip(0, 255).astype(np.uint8)
        batch = {b"data": pixels.reshape(count, -1), b"labels": labels.tolist()}
        (batches / name).write_bytes(pickle.dumps(batch))
    return _write_description(folder, "cifar10", CLASSES, train, test)


def write_mnist(folder: Path, *, train: int = 200, test: int = 50) -> Path:
    """Write MNIST's four files, with a bright bar for a digit: the higher the number, the further down."""
    dice = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = dice.integers(0, 10, count).astype(np.uint8)
        pixels = dice.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[2 * label + 4 : 2 * label + 8] += 180
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    return _write_description(folder, "mnist", [str(digit) for digit in range(10)], train, test)
