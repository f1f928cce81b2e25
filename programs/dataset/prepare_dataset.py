# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "numpy>=2.4", "pillow>=12", "backports.tarfile>=1.2; python_full_version < '3.11.4'"
# ]
# ///
"""Prepare a dataset on a volume: download, verify and unpack it, or generate synthetic images instead.

    python programs/dataset/prepare_dataset.py cifar10 --root /data
    python programs/dataset/prepare_dataset.py cifar10 --root /tmp/data --source synthetic --limit 2000
    python programs/dataset/prepare_dataset.py mnist --root /data --records

The folder ``<root>/<name>`` appears in one step, complete, with ``dataset.json`` in it. Until then, partial
files are in ``<root>/.trainyard``. Concurrent calls are safe; a killed program resumes its download when it
runs again.

Stdout has one JSON object per line: ``start``, ``source``, ``progress``, ``error``, ``end``.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from events import PreparationError, emit, is_disk_full
from fetch import fetch
from formats import FORMATS, describe
from lock import exclusive_lock
from records import write_records
from sources import SOURCES
from unpack import unpack

MIRROR = "TRAINYARD_DATASET_MIRROR"
LOCK_SECONDS = 3600


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(description="Put a dataset on a volume.")
    parser.add_argument("name", choices=sorted(FORMATS))
    parser.add_argument("--root", type=Path, default=Path("data"), help="the volume")
    parser.add_argument("--source", choices=["auto", "real", "synthetic"], default="auto")
    parser.add_argument("--limit", type=int, help="number of training images, if they are synthetic")
    parser.add_argument("--seed", type=int, default=0, help="of synthetic images")
    parser.add_argument("--records", action="store_true", help="also write records for range reads")
    return parser.parse_args(argv)


def prepare(settings: argparse.Namespace) -> dict[str, Any]:
    """Prepare the dataset and return the content of ``dataset.json``."""
    place, work = settings.root / settings.name, settings.root / ".trainyard" / settings.name
    work.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(work / "lock", timeout=LOCK_SECONDS):
        existing = read(place)
        if existing is not None and suits(existing, settings):
            emit("progress", doing="it exists already", percent=100.0)
            return with_records(place, existing, settings)
        for left in work.glob("made-*"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="made-", dir=work))
        try:
            description = fill(folder, work, settings)
            folder.chmod(0o755)
            description = with_records(folder, description, settings)
            replace(place, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return description


def with_records(place: Path, description: dict[str, Any], settings: argparse.Namespace) -> dict[str, Any]:
    """Return a dataset's description; write its records first if they are requested but missing."""
    return (
        write_records(place, description)
        if settings.records and "records" not in description
        else description
    )


def read(place: Path) -> dict[str, Any] | None:
    """Return the description of a complete dataset, or None."""
    try:
        return json.loads((place / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def suits(existing: dict[str, Any], settings: argparse.Namespace) -> bool:
    """Return True if the existing dataset meets the request."""
    if not existing["synthetic"]:
        return settings.source != "synthetic" or settings.name not in SOURCES
    limit = existing["limit"]
    enough = limit is None or (settings.limit is not None and limit >= settings.limit)
    return settings.source != "real" and enough and existing["seed"] == settings.seed


def fill(folder: Path, work: Path, settings: argparse.Namespace) -> dict[str, Any]:
    """Write the dataset and its description to a folder."""
    synthetic = settings.source == "synthetic" and settings.name in SOURCES
    source = "scikit-learn" if settings.name not in SOURCES else "a generator of the kit"
    if settings.name in SOURCES and not synthetic:
        try:
            source = fetch_all(folder, work, settings)
        except PreparationError as error:
            if not error.unreachable or settings.source == "real":
                raise
            synthetic = True
            emit("synthetic", why=str(error), note="STAND-IN DATA: the real images could not be downloaded")
    layout = FORMATS[settings.name]
    if synthetic or settings.name not in SOURCES:
        train = min(settings.limit or layout.train, layout.train)
        test = max(1, train * layout.test // layout.train)
        layout.write(folder, train, test, settings.seed)
    else:
        layout.tidy(folder)
    return describe(
        folder,
        layout.read(folder),
        name=settings.name,
        synthetic=synthetic,
        source=source,
        limit=settings.limit if synthetic else None,
        seed=settings.seed if synthetic else None,
    )


def fetch_all(folder: Path, work: Path, settings: argparse.Namespace) -> str:
    """Download and unpack the files; return the address that they came from."""
    source = SOURCES[settings.name]
    free = shutil.disk_usage(work).free
    if free < source.room:
        raise PreparationError(
            f"the volume is full: {settings.name} needs {source.room / 1e6:.0f} MB, "
            f"{free / 1e6:.0f} MB are free"
        )
    mirrors = [mirror for mirror in (os.environ.get(MIRROR), *source.mirrors) if mirror]
    for download in source.downloads:
        archive, url = fetch(download, mirrors, work)
        mirrors.sort(key=lambda mirror: not url.startswith(mirror))  # prefer the mirror that responded
        into = folder / "MNIST" / "raw" if settings.name == "mnist" else folder
        emit("progress", doing=f"unpacking {download.name}", percent=None)
        unpack(archive, into)
        archive.unlink()
    return url.rsplit("/", 1)[0]


def replace(place: Path, folder: Path) -> None:
    """Move a complete folder into place; delete an existing one."""
    if place.exists():
        place.rename(folder / ".before")
    folder.rename(place)
    shutil.rmtree(place / ".before", ignore_errors=True)


def main(argv: list[str] | None = None) -> None:
    """Prepare the dataset and report the result."""
    began, settings = time.monotonic(), parse_settings(argv)
    emit("start", dataset=settings.name, folder=str(settings.root / settings.name))
    try:
        description = prepare(settings)
    except PreparationError as error:
        message = str(error)
    except OSError as error:
        message = (
            f"the volume is full: {error.strerror}"
            if is_disk_full(error)
            else f"the volume cannot be used: {error}"
        )
    else:
        emit("end", seconds=round(time.monotonic() - began, 2), **description)
        return
    if message.startswith("the volume is full"):
        for part in (settings.root / ".trainyard" / settings.name).glob("*.part"):
            part.unlink(missing_ok=True)
    emit("error", message=message)
    raise SystemExit(f"{settings.name} was not prepared: {message}")


if __name__ == "__main__":
    # The first process of a container ignores SIGTERM otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
