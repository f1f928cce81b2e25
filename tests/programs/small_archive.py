"""A small archive like CIFAR-10's, and sources that let the program which prepares datasets accept it."""

import hashlib
import io
import tarfile
from pathlib import Path

from .small_data import write_cifar10

DATASETS = Path(__file__).parents[2] / "programs" / "dataset"
NAME = "cifar-10-python.tar.gz"
PATH = f"/{NAME}"
# The real file's size and checksum, as they stand in sources.py.
REAL = ("170498071", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce")


def archive(folder: Path) -> bytes:
    """Return a small ``cifar-10-python.tar.gz``."""
    write_cifar10(folder)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(folder / "cifar-10-batches-py", "cifar-10-batches-py")
    return packed.getvalue()


def sources_for(content: bytes) -> str:
    """Return sources.py with this archive in place of the real one, and without mirrors."""
    text = (DATASETS / "sources.py").read_text()
    ours = (str(len(content)), hashlib.sha256(content).hexdigest())
    for real, small in zip((*REAL, '"https://www.cs.toronto.edu/~kriz/",'), (*ours, ""), strict=True):
        assert real in text
        text = text.replace(real, small)
    return text.replace("room=360_000_000", "room=0")
