"""For trainers under test: the trainers, and data sets of a few images in the standard formats, learnable."""

import importlib.util
import json
import os
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .forked import TRAINERS, Program, free_port

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def load_trainer(name: str):
    """Import a trainer; that alone does nothing."""
    spec = importlib.util.spec_from_file_location(name, TRAINERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_ranks(count: int, name: str, *flags: str) -> list[Program]:
    """Start a trainer's ranks as processes of one thread each, without torchrun, which takes seconds."""
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = os.environ | common | {"OMP_NUM_THREADS": "1"}
    environments = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [Program(TRAINERS / f"{name}.py", *flags, environment=variables) for variables in environments]


def rank_lines(count: int, name: str, *flags: str, seconds: float = 240) -> list[str]:
    """Run a trainer's ranks to their end, each well, and return the lines of them all."""
    ranks = start_ranks(count, name, *flags)
    lines = [line for rank in ranks for line in rank.communicate(timeout=seconds)[0].splitlines()]
    assert [rank.returncode for rank in ranks] == [0] * count
    return lines


def read_events(lines: Iterable[str]) -> list[dict]:
    """Parse the events among lines."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def rank_events(count: int, name: str, *flags: str) -> list[dict]:
    """Run a trainer's ranks to their end, each well, and return the events of them all."""
    return read_events(rank_lines(count, name, *flags))


def of_kind(events: list[dict], kind: str) -> list[dict]:
    """Return the events of one kind."""
    return [event for event in events if event["event"] == kind]


def _write_description(folder: Path, name: str, classes: list[str], train: int, test: int) -> Path:
    about = {"name": name, "synthetic": True, "classes": classes, "train_images": train, "test_images": test}
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder


def write_cifar10(folder: Path, *, train: int = 200, test: int = 50) -> Path:
    """Write five training batches and a test batch whose classes differ by their colour, under noise."""
    generator = np.random.default_rng(0)
    colours = generator.integers(40, 216, (10, 3, 1, 1))
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name, count in [(f"data_batch_{number}", train // 5) for number in range(1, 6)] + [
        ("test_batch", test)
    ]:
        labels = generator.permutation(np.arange(count) % 10)
        pixels = (colours[labels] + generator.normal(0, 25, (count, 3, 32, 32))).clip(0, 255).astype(np.uint8)
        batch = {b"data": pixels.reshape(count, -1), b"labels": labels.tolist()}
        (batches / name).write_bytes(pickle.dumps(batch))
    return _write_description(folder, "cifar10", CLASSES, train, test)


def write_mnist(folder: Path, *, train: int = 200, test: int = 50) -> Path:
    """Write MNIST's four files, with a bright bar for a digit: the higher the number, the further down."""
    generator = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = generator.integers(0, 10, count).astype(np.uint8)
        pixels = generator.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[2 * label + 4 : 2 * label + 8] += 180
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    return _write_description(folder, "mnist", [str(digit) for digit in range(10)], train, test)


def write_folders(folder: Path, *, side: int = 64, inner: str = "tiny-imagenet-200") -> Path:
    """Write JPEG files in a folder for each of four classes of one colour each: 20 to train on, 5 to test."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for number, colour in enumerate(((200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40))):
        for part, count in (("train", 20), ("val", 5)):
            place = folder / inner / part / f"n{number}" / "images"
            place.mkdir(parents=True)
            for index in range(count):
                pixels = (colour + generator.normal(0, 20, (side, side, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.JPEG")
    return _write_description(folder, "tiny-imagenet-200", ["n0", "n1", "n2", "n3"], 80, 20)
