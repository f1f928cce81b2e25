"""Write a dataset as records: one file for training and one for testing, for range reads.

A file is an array of raw bytes in NumPy's format (``records/train.npy``), one item per record, all of one
size: the label in one byte, then the pixels as in the dataset: 64 values from 0 to 16 for the digits,
28 x 28 for MNIST, 3 x 32 x 32 for CIFAR-10, channel by channel. Item 17 is at a known offset in the file,
so a memory-mapped file supports reading any range and nothing else. The reader is
``trainers/parameter_server/records.py``. Images of different sizes would need another format.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from events import PreparationError, emit
from formats import read_cifar10_batch, read_idx
from synthetic import read_digits

FOLDER = "records"
Images = tuple[np.ndarray, np.ndarray]


def write_records(place: Path, description: dict[str, Any]) -> dict[str, Any]:
    """Add records to a complete dataset, and return the new content of ``dataset.json``.

    The folder appears in one step; ``dataset.json`` is updated afterwards.

    Raises:
        PreparationError: The dataset has images of different sizes.
        OSError: The volume is full or not writable.
    """
    read = READERS.get(description["name"])
    if read is None:
        known = ", ".join(READERS)
        raise PreparationError(
            f"{description['name']} cannot be converted to records, which have a fixed size; {known} can"
        )
    emit("progress", doing="writing the records", percent=None)
    for left in place.glob(".records-*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".records-", dir=place))
    try:
        counted = {part: _write(unfinished / f"{part}.npy", read(place, part)) for part in ("train", "test")}
        unfinished.chmod(0o755)
        shutil.rmtree(place / FOLDER, ignore_errors=True)  # left by a killed process
        unfinished.rename(place / FOLDER)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    description = description | {"records": counted}
    aside = place / ".dataset.json"
    aside.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    aside.replace(place / "dataset.json")
    return description


def _write(path: Path, images: Images) -> int:
    pixels, labels = images
    flat = pixels.reshape(len(labels), -1)
    records = np.concatenate([labels.astype(np.uint8)[:, None], flat.astype(np.uint8)], axis=1)
    with path.open("wb") as file:
        np.save(file, records.view(f"V{records.shape[1]}").ravel(), allow_pickle=False)
    return len(records)


def _digits(place: Path, part: str) -> Images:
    images, truth = read_digits()
    cut = len(images) - (len(images) // 5 + 1)
    chosen = slice(None, cut) if part == "train" else slice(cut, None)
    return images[chosen], truth[chosen]


def _mnist(place: Path, part: str) -> Images:
    raw, start = place / "MNIST" / "raw", "train" if part == "train" else "t10k"
    return read_idx(raw / f"{start}-images-idx3-ubyte"), read_idx(raw / f"{start}-labels-idx1-ubyte")


def _cifar10(place: Path, part: str) -> Images:
    batches = place / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)] if part == "train" else ["test_batch"]
    read = [read_cifar10_batch(batches / name) for name in names]
    return np.concatenate([batch[b"data"] for batch in read]), np.concatenate(
        [batch[b"labels"] for batch in read]
    )


READERS: dict[str, Callable[[Path, str], Images]] = {"digits": _digits, "mnist": _mnist, "cifar10": _cifar10}
