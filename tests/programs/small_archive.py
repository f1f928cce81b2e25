"""A small archive like CIFAR-10's; and the program that prepares datasets, which takes it for real."""

import hashlib
import io
import subprocess
import sys
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


class Program:
    """The program, in a folder where its sources are those of the small archive."""

    def __init__(self, folder: Path, content: bytes) -> None:
        self.code, self.root = folder / "code", folder / "volume"
        self.code.mkdir(parents=True)
        self.root.mkdir()
        for path in DATASETS.glob("*.py"):
            (self.code / path.name).write_text(path.read_text())
        (self.code / "sources.py").write_text(sources_for(content))

    def start(
        self, *flags: str, mirror: str = "", before: str = "", environment: dict | None = None, **more
    ) -> subprocess.Popen:
        """Start it; ``before`` is Python that runs first."""
        script = (
            f"import sys; sys.path.insert(0, {str(self.code)!r}); sys.argv[0] = 'prepare'\n"
            f"import fetch, prepare_dataset\nfetch.PAUSE_SECONDS = 0.01; {before}\nprepare_dataset.main()"
        )
        command = [sys.executable, "-c", script, "cifar10", f"--root={self.root}", *flags]
        return subprocess.Popen(
            command,
            env={"TRAINYARD_DATASET_MIRROR": mirror, "PATH": "/usr/bin:/bin", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
