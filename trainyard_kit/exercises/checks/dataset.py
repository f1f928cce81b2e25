"""04: a `torch.utils.data.Dataset` of images in a folder for each class. A DataLoader iterates it."""

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

CLASSES, IN_EACH, SIDE = ("ant", "bee", "cat", "dog", "elk"), (3, 2, 4, 1, 2), 8
GREY = 20  # of the first picture; the second has twice as much, and so on
SHAPE = f"(1, {SIDE}, {SIDE}): channels × rows × columns, and grey has one channel"
ONCE = "each picture comes once"
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
    """Write pictures of 8 x 8 pixels, each of one grey, which tells it from all others."""
    import numpy
    from PIL import Image

    root = Path(tempfile.mkdtemp(prefix="exercise-"))
    number = 0
    for name, count in zip(CLASSES, IN_EACH, strict=True):
        (root / name).mkdir()
        for index in range(count):
            number += 1
            Image.fromarray(numpy.full((SIDE, SIDE), GREY * number, "uint8")).save(
                root / name / f"{index}.png"
            )
    return root


@cache
def made(dataset: Answer) -> Sequence[tuple[Any, Any]]:
    """Create the learner's dataset."""
    return dataset(folder())


def greys(dataset: Sequence[tuple[Any, Any]]) -> list[int]:
    return [round(float(dataset[index][0].max()) * 255) for index in range(sum(IN_EACH))]


@EXERCISE.check("it is a Dataset that takes a folder", essential=True)
def is_dataset(dataset: Answer) -> None:
    from torch.utils.data import Dataset

    if Dataset not in getattr(dataset, "__mro__", ()):
        raise NotYet("derive the class from torch.utils.data.Dataset")
    made(dataset)


@EXERCISE.check("its length is the number of pictures", essential=True)
def length(dataset: Answer) -> None:
    count = len(made(dataset))
    if count != sum(IN_EACH):
        message = ": the number of folders" if count == len(CLASSES) else ""
        raise NotYet(f"the folder has {sum(IN_EACH)} pictures, len() returns {count}{message}")


@EXERCISE.check("an item is a picture and a label", essential=True)
def item(dataset: Answer) -> None:
    first_item = made(dataset)[0]
    if not isinstance(first_item, tuple | list) or len(first_item) != 2:
        raise NotYet(f"dataset[0] is {describe(first_item)}, and should be a tuple: picture, label")


@EXERCISE.check("the picture is a float tensor, 1 × 8 × 8, from 0 to 1", essential=True)
def picture(dataset: Answer) -> None:
    import torch

    first_item = made(dataset)[sum(IN_EACH) - 1]
    pixels = first_item[0]
    if not isinstance(pixels, torch.Tensor) and isinstance(first_item[1], torch.Tensor):
        raise NotYet("the label comes first: return the picture, then the label")
    if not isinstance(pixels, torch.Tensor):
        raise NotYet(f"the picture is a {type(pixels).__name__}, and should be a torch.Tensor")
    if pixels.dtype != torch.float32:
        raise NotYet(f"the picture's type is {pixels.dtype}, and should be torch.float32")
    if tuple(pixels.shape) != (1, SIDE, SIDE):
        raise NotYet(f"the picture's shape is {tuple(pixels.shape)}, and should be {SHAPE}")
    for index in range(sum(IN_EACH)):
        _in_range(made(dataset)[index][0])


def _in_range(pixels: "torch.Tensor") -> None:
    """Check that a picture of one grey has a byte's value divided by 255."""
    low, high = float(pixels.min()), float(pixels.max())
    if high > 1:
        raise NotYet(f"the largest value is {high:g}: divide bytes by 255")
    if low < 0:
        raise NotYet(f"the smallest value is {low:g}: black is 0 and white is 1, so only divide bytes by 255")
    if high == 0:
        raise NotYet("every value is 0: divide by / and not by //, after the bytes have become floats")
    if abs(high * 255 / GREY - round(high * 255 / GREY)) > 0.01 or high * 255 > GREY * sum(IN_EACH) + 1:
        raise NotYet(f"a value is {high:.4g}, which is no byte divided by 255, and by nothing else")


@EXERCISE.check(ONCE)
def each_once(dataset: Answer) -> None:
    if len(set(greys(made(dataset)))) != sum(IN_EACH):
        raise NotYet("some pictures come twice and others never: __getitem__ has to use its index")


@EXERCISE.check("labels count the classes from 0, in the alphabet's order", after=ONCE)
def labels(dataset: Answer) -> None:
    by_index = {}
    for index in range(sum(IN_EACH)):
        grey, label = round(float(made(dataset)[index][0].max()) * 255), made(dataset)[index][1]
        try:
            if isinstance(label, bool) or getattr(label, "ndim", None):
                raise TypeError
            by_index[grey // GREY] = operator.index(label)  # of NumPy and of torch, too
        except TypeError:
            message = f"a label is {describe(label)}, and should be an int: the number of its class"
            raise NotYet(message) from None
    expected = [label for label, count in enumerate(IN_EACH) for _ in range(count)]
    by_picture = [by_index.get(number, -1) for number in range(1, sum(IN_EACH) + 1)]
    if by_picture != expected:
        raise NotYet(_advise_labels(by_picture))


def _advise_labels(by_picture: list[int]) -> str:
    """Advise on labels that are not 0, 1, 2 … for the classes in the alphabet's order."""
    names = [name for name, count in zip(CLASSES, IN_EACH, strict=True) for _ in range(count)]
    by_class = {name: sorted({label for of, label in zip(names, by_picture, strict=True) if of == name})
                for name in CLASSES}  # fmt: skip
    shown = ", ".join(f"{name} {'/'.join(map(str, labels))}" for name, labels in by_class.items())
    if any(len(labels) > 1 for labels in by_class.values()):
        return f"pictures of one class have several labels ({shown}): the label is the number of the folder"
    numbers = [labels[0] for labels in by_class.values()]
    if len(set(numbers)) < len(numbers):
        return f"several classes have one label ({shown}): give each folder a number of its own"
    if sorted(numbers) != list(range(len(numbers))):
        return f"the labels are {shown}: count the folders from 0, without a gap, as enumerate does"
    return f"the labels are {shown}, and should be 0, 1, 2 …: sort the folders"


class Entries(list[Any]):
    """What ``os.scandir`` returns: iterated with or without ``with``."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    close = __exit__

    def __next__(self) -> Any:  # os.walk asks so
        if not self:
            raise StopIteration
        return self.pop(0)


@contextmanager
def listed(*, backwards: bool) -> Iterator[None]:
    """List folders forwards or backwards meanwhile, as another file system might."""
    scandir, listdir = os.scandir, os.listdir

    def scan(*path: str) -> Entries:
        with scandir(*path) as entries:
            return Entries(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    def names(*path: str) -> list[str]:
        return sorted(listdir(*path), reverse=backwards)

    with patch.object(os, "scandir", scan), patch.object(os, "listdir", names):
        yield


@EXERCISE.check("the order is the same in each process")
def order(dataset: Answer) -> None:
    order_found = []
    for backwards in (False, True):
        with listed(backwards=backwards):
            pictures = dataset(folder())
            order_found.append([greys(pictures), [str(pictures[index][1]) for index in range(sum(IN_EACH))]])
    if order_found[0] != order_found[1]:
        raise NotYet(
            "file systems list files in any order, so ranks would disagree about index 0: "
            "sort the files and folders"
        )


@EXERCISE.check("a DataLoader with two workers reads all of it", last=True)
def loader(dataset: Answer) -> None:
    from torch.utils.data import DataLoader

    # The class is of a cell, which only a fork has; Python 3.14 would start the workers by a fork server.
    batches = list(
        DataLoader(
            dataset(folder()), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork"
        )
    )
    if sum(len(images) for images, _ in batches) != sum(IN_EACH):
        raise NotYet("the loader does not return all pictures")
