"""04: a `torch.utils.data.Dataset` of images in one folder per class. A DataLoader iterates over it."""

import operator
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

if TYPE_CHECKING:
    import torch

CLASSES, IMAGES_PER_CLASS, SIDE = ("ant", "bee", "cat", "dog", "elk"), (3, 2, 4, 1, 2), 8
GREY = 20  # pixel value of the first image; the second has 40, and so on
SHAPE = f"(1, {SIDE}, {SIDE}): channels × rows × columns, where greyscale has one channel"
ONCE = "each image occurs once"
STUB = """
class Pictures(Dataset):
    def __init__(self, root):
        self.items = []
    def __len__(self):
        return 0
    def __getitem__(self, index):
        path, label = self.items[index]
        return decode_image(str(path), mode="GRAY"), label
"""
EXERCISE = Exercise("dataset", seconds=30, stub=STUB)


@cache
def folder() -> Path:
    """Write images of 8 x 8 pixels, each of a uniform grey by which it is identified."""
    import numpy
    from PIL import Image

    root = Path(tempfile.mkdtemp(prefix="exercise-"))
    number = 0
    for name, count in zip(CLASSES, IMAGES_PER_CLASS, strict=True):
        (root / name).mkdir()
        for index in range(count):
            number += 1
            Image.fromarray(numpy.full((SIDE, SIDE), GREY * number, "uint8")).save(
                root / name / f"{index}.png"
            )
    return root


@cache
def create(dataset: Answer) -> Sequence[tuple[Any, Any]]:
    """Create the learner's dataset once."""
    return dataset(folder())


def greys(dataset: Sequence[tuple[Any, Any]]) -> list[int]:
    return [round(float(dataset[index][0].max()) * 255) for index in range(sum(IMAGES_PER_CLASS))]


@EXERCISE.check("it is a Dataset that takes a folder", essential=True)
def is_dataset(dataset: Answer) -> None:
    from torch.utils.data import Dataset

    if Dataset not in getattr(dataset, "__mro__", ()):
        raise NotYet("derive the class from torch.utils.data.Dataset")
    create(dataset)


@EXERCISE.check("its length is the number of images", essential=True)
def length(dataset: Answer) -> None:
    count = len(create(dataset))
    if count != sum(IMAGES_PER_CLASS):
        message = ", the number of folders" if count == len(CLASSES) else ""
        raise NotYet(f"the folder has {sum(IMAGES_PER_CLASS)} images, and len() returns {count}{message}")


@EXERCISE.check("an item is an image and a label", essential=True)
def image_and_label(dataset: Answer) -> None:
    first_item = create(dataset)[0]
    if not isinstance(first_item, tuple | list) or len(first_item) != 2:
        raise NotYet(f"dataset[0] is {describe(first_item)}, and should be a tuple: image, label")


@EXERCISE.check("the image is a float tensor of shape 1 × 8 × 8 with values from 0 to 1", essential=True)
def image_tensor(dataset: Answer) -> None:
    import torch

    first_item = create(dataset)[sum(IMAGES_PER_CLASS) - 1]
    pixels = first_item[0]
    if not isinstance(pixels, torch.Tensor) and isinstance(first_item[1], torch.Tensor):
        raise NotYet("the label comes first: return the image, then the label")
    if not isinstance(pixels, torch.Tensor):
        raise NotYet(f"the image is a {type(pixels).__name__}, and should be a torch.Tensor")
    if pixels.dtype != torch.float32:
        raise NotYet(f"the image's dtype is {pixels.dtype}, and should be torch.float32")
    if tuple(pixels.shape) != (1, SIDE, SIDE):
        raise NotYet(f"the image's shape is {tuple(pixels.shape)}, and should be {SHAPE}")
    for index in range(sum(IMAGES_PER_CLASS)):
        _in_range(create(dataset)[index][0])


def _in_range(pixels: "torch.Tensor") -> None:
    """Check that the values of an image are those of its bytes divided by 255."""
    low, high = float(pixels.min()), float(pixels.max())
    if high > 1:
        raise NotYet(f"the largest value is {high:g}: divide bytes by 255")
    if low < 0:
        raise NotYet(f"the smallest value is {low:g}: black is 0 and white is 1, so only divide bytes by 255")
    if high == 0:
        raise NotYet("all values are 0: convert the bytes to floats, and divide with /, not //")
    if (
        abs(high * 255 / GREY - round(high * 255 / GREY)) > 0.01
        or high * 255 > GREY * sum(IMAGES_PER_CLASS) + 1
    ):
        raise NotYet(f"a value is {high:.4g}, which is not a byte divided by 255")


@EXERCISE.check(ONCE)
def each_once(dataset: Answer) -> None:
    if len(set(greys(create(dataset)))) != sum(IMAGES_PER_CLASS):
        raise NotYet("some images occur twice and others never: __getitem__ must use its index")


@EXERCISE.check("labels number the classes from 0 in alphabetical order", after=ONCE)
def class_labels(dataset: Answer) -> None:
    by_index = {}
    for index in range(sum(IMAGES_PER_CLASS)):
        grey, label = round(float(create(dataset)[index][0].max()) * 255), create(dataset)[index][1]
        try:
            if isinstance(label, bool) or getattr(label, "ndim", None):
                raise TypeError
            by_index[grey // GREY] = operator.index(label)  # accepts NumPy's and torch's, too
        except TypeError:
            message = f"a label is {describe(label)}, and should be an int: the number of its class"
            raise NotYet(message) from None
    expected = [label for label, count in enumerate(IMAGES_PER_CLASS) for _ in range(count)]
    by_picture = [by_index.get(number, -1) for number in range(1, sum(IMAGES_PER_CLASS) + 1)]
    if by_picture != expected:
        raise NotYet(_advise_labels(by_picture))


def _advise_labels(by_picture: list[int]) -> str:
    """Advise on labels that are not 0, 1, 2 … for the classes in alphabetical order."""
    names = [name for name, count in zip(CLASSES, IMAGES_PER_CLASS, strict=True) for _ in range(count)]
    by_class = {name: sorted({label for of, label in zip(names, by_picture, strict=True) if of == name})
                for name in CLASSES}  # fmt: skip
    shown = ", ".join(f"{name} {'/'.join(map(str, labels))}" for name, labels in by_class.items())
    if any(len(labels) > 1 for labels in by_class.values()):
        return f"images of one class have different labels ({shown}): the label is the number of the folder"
    numbers = [labels[0] for labels in by_class.values()]
    if len(set(numbers)) < len(numbers):
        return f"several classes share a label ({shown}): give each folder its own number"
    if sorted(numbers) != list(range(len(numbers))):
        return f"the labels are {shown}: number the folders from 0 without gaps, as enumerate does"
    return f"the labels are {shown}, and should be 0, 1, 2 …: sort the folders"


class Entries(list[Any]):
    """The result of ``os.scandir``, as an iterator and a context manager."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    close = __exit__

    def __next__(self) -> Any:  # as os.walk reads it
        if not self:
            raise StopIteration
        return self.pop(0)


@contextmanager
def listed(*, backwards: bool) -> Iterator[None]:
    """List directories in ascending or descending order meanwhile, as another file system might."""
    scandir, listdir = os.scandir, os.listdir

    def scan(*path: str) -> Entries:
        with scandir(*path) as entries:
            return Entries(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    def names(*path: str) -> list[str]:
        return sorted(listdir(*path), reverse=backwards)

    with patch.object(os, "scandir", scan), patch.object(os, "listdir", names):
        yield


@EXERCISE.check("the order is the same in every process")
def same_order(dataset: Answer) -> None:
    orders = []
    for backwards in (False, True):
        with listed(backwards=backwards):
            images = dataset(folder())
            orders.append([greys(images), [str(images[index][1]) for index in range(sum(IMAGES_PER_CLASS))]])
    if orders[0] != orders[1]:
        raise NotYet(
            "file systems list files in any order, so ranks would disagree on index 0: "
            "sort the files and folders"
        )


@EXERCISE.check("a DataLoader with two workers reads all images", last=True)
def data_loader(dataset: Answer) -> None:
    from torch.utils.data import DataLoader

    # Only a forked worker has the class of the cell; Python 3.14 uses a fork server by default.
    batches = list(
        DataLoader(
            dataset(folder()), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork"
        )
    )
    if sum(len(images) for images, _ in batches) != sum(IMAGES_PER_CLASS):
        raise NotYet("the DataLoader does not return all images")
