"""The file formats of the datasets: write them for synthetic images, read them for counts and previews.

`torchvision.datasets.MNIST` and `ImageFolder` read these files like the real ones. `CIFAR10` compares the
files with the MD5 checksums of the real ones, which generated files cannot match; other loaders read both.
"""

import json
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from events import Meter
from sources import CIFAR10_CLASSES, DIGITS
from synthetic import Appearance, digits, digits_file, labels, pictures, read_digits

SAMPLE = 24
SYNTHETIC_CLASSES = 200


@dataclass(frozen=True)
class Contents:
    """The content of a prepared folder.

    Attributes:
        classes: The class names, by number.
        train_images: The number of training images.
        test_images: The number of test images.
        sample: A few images and their classes, as a preview.
    """

    classes: list[str]
    train_images: int
    test_images: int
    sample: tuple[np.ndarray, list[str]]


@dataclass(frozen=True)
class Format:
    """The format of one dataset in its folder.

    Attributes:
        train: The number of training images.
        test: The number of test images.
        write: Writes synthetic images: folder, number of training and test images, seed.
        read: Reads the content of a folder.
        tidy: Rearranges the unpacked files of the real dataset.
    """

    train: int
    test: int
    write: Callable[[Path, int, int, int], None]
    read: Callable[[Path], Contents]
    tidy: Callable[[Path], None] = lambda folder: None


# digits ---------------------------------------------------------------------------------------------------


def write_digits(folder: Path, train: int, test: int, seed: int) -> None:
    """Copy scikit-learn's file, which contains real digits."""
    shutil.copyfile(digits_file(), folder / "digits.csv.gz")


def read_digits_folder(folder: Path) -> Contents:
    images, truth = read_digits()
    test = len(images) // 5 + 1
    shown = np.clip(images[:SAMPLE] * 16, 0, 255).astype(np.uint8)
    return Contents(
        list(DIGITS), len(images) - test, test, (shown, [DIGITS[label] for label in truth[:SAMPLE]])
    )


# MNIST: http://yann.lecun.com/exdb/mnist/ describes the IDX format ------------------------------------------


def write_mnist(folder: Path, train: int, test: int, seed: int) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    meter = Meter("generating synthetic images", train + test)
    for part, count in (("train", train), ("t10k", test)):
        rng = np.random.default_rng([seed, count, part == "t10k"])
        classes_of, images = labels(count, 10, rng), []
        for start in range(0, count, 2000):
            images.append(digits(classes_of[start : start + 2000], rng, test=part == "t10k"))
            meter.add(len(images[-1]))
        _write_idx(raw / f"{part}-images-idx3-ubyte", np.concatenate(images))
        _write_idx(raw / f"{part}-labels-idx1-ubyte", classes_of.astype(np.uint8))


def read_mnist(folder: Path) -> Contents:
    raw = folder / "MNIST" / "raw"
    images, truth = (read_idx(raw / f"train-{part}-ubyte") for part in ("images-idx3", "labels-idx1"))
    test = len(read_idx(raw / "t10k-labels-idx1-ubyte"))
    return Contents(
        list(DIGITS), len(truth), test, (images[:SAMPLE], [DIGITS[label] for label in truth[:SAMPLE]])
    )


def _write_idx(path: Path, array: np.ndarray) -> None:
    head = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4")
    path.write_bytes(head.tobytes() + array.tobytes())


def read_idx(path: Path) -> np.ndarray:
    """Return the array in an IDX file of bytes."""
    content = path.read_bytes()
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


# CIFAR-10: https://www.cs.toronto.edu/~kriz/cifar.html describes the batches --------------------------------


def write_cifar10(folder: Path, train: int, test: int, seed: int) -> None:
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    appearance = Appearance(10, group=2, seed=0)
    counts = [len(part) for part in np.array_split(np.arange(train), 5)]
    names = [f"data_batch_{number}" for number in range(1, 6)]
    meter = Meter("generating synthetic images", train + test)
    for index, (name, count) in enumerate([*zip(names, counts, strict=True), ("test_batch", test)]):
        rng = np.random.default_rng([seed, index])
        classes_of = labels(count, 10, rng)
        flat = pictures(classes_of, appearance, 32, rng).transpose(0, 3, 1, 2).reshape(count, -1)
        title = f"stand-in {name}".encode()
        files = [f"{CIFAR10_CLASSES[label]}_s_{i:06d}.png".encode() for i, label in enumerate(classes_of)]
        _write_pickle(
            batches / name,
            {b"batch_label": title, b"labels": classes_of.tolist(), b"data": flat, b"filenames": files},
        )
        meter.add(count)
    meta: dict[bytes, object] = {b"num_cases_per_batch": counts[0], b"num_vis": 3072}
    _write_pickle(
        batches / "batches.meta", meta | {b"label_names": [name.encode() for name in CIFAR10_CLASSES]}
    )


def read_cifar10(folder: Path) -> Contents:
    batches = folder / "cifar-10-batches-py"
    first = read_cifar10_batch(batches / "data_batch_1")
    images = first[b"data"][:SAMPLE].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    sample = (images, [CIFAR10_CLASSES[label] for label in first[b"labels"][:SAMPLE]])
    names = [*(f"data_batch_{number}" for number in range(2, 6)), "test_batch"]
    counts = [
        len(batch[b"labels"]) for batch in (first, *(read_cifar10_batch(batches / name) for name in names))
    ]
    return Contents(list(CIFAR10_CLASSES), sum(counts[:5]), counts[5], sample)


def read_cifar10_batch(path: Path) -> dict[bytes, Any]:
    """Read one batch: ``data`` (images x 3072) and ``labels``, with bytes as keys."""
    with path.open("rb") as file:
        return pickle.load(file, encoding="bytes")  # its checksum was verified, or it was generated here


class _Python2Pickler(pickle._Pickler):
    """Pickle bytes as Python 2 pickled strings, as in the real files, so that they load as bytes or text."""

    write: Callable[[bytes], object]
    memoize: Callable[[object], None]

    def save_string(self, text: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch = pickle._Pickler.dispatch | {bytes: save_string}  # type: ignore[assignment] # its stub names Unpickler


def _write_pickle(path: Path, content: dict[bytes, object]) -> None:
    with path.open("wb") as file:
        _Python2Pickler(file, protocol=2).dump(content)


# tiny-imagenet-200 ------------------------------------------------------------------------------------------


def write_tiny_imagenet(folder: Path, train: int, test: int, seed: int) -> None:
    from PIL import Image

    root = folder / "tiny-imagenet-200"
    appearance = Appearance(SYNTHETIC_CLASSES, group=5, seed=0)
    ids = [f"n9{number:07d}" for number in range(SYNTHETIC_CLASSES)]
    per_class, each_test = max(1, train // SYNTHETIC_CLASSES), max(1, test // SYNTHETIC_CLASSES)
    meter = Meter("generating synthetic images", (per_class + each_test) * SYNTHETIC_CLASSES)
    annotations = []
    for number, wnid in enumerate(ids):
        rng = np.random.default_rng([seed, number])
        drawn = pictures(np.full(per_class + each_test, number), appearance, 64, rng)
        for part, images in (("train", drawn[:per_class]), ("val", drawn[per_class:])):
            place = root / part / wnid / "images"
            place.mkdir(parents=True)
            for index, image in enumerate(images):
                name = f"{wnid}_{index}.JPEG" if part == "train" else f"val_{number * each_test + index}.JPEG"
                Image.fromarray(image).save(place / name, "JPEG", quality=85)
                if part == "val":
                    annotations.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
        boxes = "".join(f"{wnid}_{index}.JPEG\t0\t0\t62\t62\n" for index in range(per_class))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(boxes)
        meter.add(per_class + each_test)
    (root / "val" / "val_annotations.txt").write_text("".join(annotations))
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in ids))
    (root / "words.txt").write_text("".join(f"{wnid}\tstand-in {i}\n" for i, wnid in enumerate(ids)))


def tidy_tiny_imagenet(folder: Path) -> None:
    """Sort the validation images into a folder for each class, the layout that `ImageFolder` reads.

    They come in one folder with a table of their labels, which is kept.
    """
    val = folder / "tiny-imagenet-200" / "val"
    for line in (val / "val_annotations.txt").read_text().splitlines():
        name, wnid, *_ = line.split("\t")
        place = val / wnid / "images"
        place.mkdir(parents=True, exist_ok=True)
        (val / "images" / name).rename(place / name)
    (val / "images").rmdir()


def read_tiny_imagenet(folder: Path) -> Contents:
    from PIL import Image

    root = folder / "tiny-imagenet-200"
    ids = (root / "wnids.txt").read_text().split()
    words = dict(line.split("\t", 1) for line in (root / "words.txt").read_text().splitlines())
    first = [next(_pictures(root / "train" / wnid)) for wnid in sorted(ids)[:SAMPLE]]
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in first])
    names = [words.get(wnid, wnid).split(",")[0] for wnid in sorted(ids)[:SAMPLE]]
    # ImageFolder numbers the classes in the order of their folder names.
    train, val = (sum(1 for _ in _pictures(root / part)) for part in ("train", "val"))
    return Contents(sorted(ids), train, val, (images, names))


def _pictures(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.JPEG"))


FORMATS = {
    "digits": Format(1437, 360, write_digits, read_digits_folder),
    "mnist": Format(60_000, 10_000, write_mnist, read_mnist),
    "cifar10": Format(50_000, 10_000, write_cifar10, read_cifar10),
    "tiny-imagenet-200": Format(100_000, 10_000, write_tiny_imagenet, read_tiny_imagenet, tidy_tiny_imagenet),
}


def describe(folder: Path, contents: Contents, **more: object) -> dict[str, Any]:
    """Write the preview, then ``dataset.json``, which marks the dataset as complete; return its content."""
    images, names = contents.sample
    np.savez_compressed(folder / "sample.npz", images=images, labels=np.array(names))
    description = more | {
        "classes": contents.classes,
        "train_images": contents.train_images,
        "test_images": contents.test_images,
    }
    (folder / "dataset.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description
