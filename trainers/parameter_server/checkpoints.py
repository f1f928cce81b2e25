"""A server's checkpoints on the volume: written atomically; loading takes the newest readable one.

Files are archives of ``torch.save`` with a checksum of each member. They are loaded with ``weights_only``, so
that reading them runs no code. The server decides when to save.
"""

import io
import os
import socket
import zipfile
from pathlib import Path
from typing import Any

import torch

KEEP = 2
PATTERN = "version-*.pt"


def path_of(folder: Path, version: int) -> Path:
    """Return the path of a version, whether it exists or not."""
    return folder / f"version-{version:09d}.pt"


def write(path: Path, content: dict[str, Any]) -> int:
    """Write a file atomically; return its size in bytes.

    Raises:
        OSError: Writing failed; an older file of this name is unchanged.
    """
    temporary = path.with_name(f".new.{socket.gethostname()}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
        temporary.unlink(missing_ok=True)
        raise OSError(str(error)) from error
    return size


def save(folder: Path, version: int, state: dict[str, Any]) -> int:
    """Write a state and delete all but the newest `KEEP`; return its size in bytes.

    Raises:
        OSError: Writing failed; the older files are unchanged.
    """
    size = write(path_of(folder, version), state)
    for old in sorted(folder.glob(PATTERN))[:-KEEP]:
        old.unlink(missing_ok=True)
    return size


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest readable state (or None), and the names of broken files."""
    broken: list[str] = []
    for path in sorted(folder.glob(PATTERN), reverse=True):
        try:
            content = path.read_bytes()
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if archive.testzip() is None:
                    return torch.load(io.BytesIO(content), weights_only=True), broken
        except (OSError, zipfile.BadZipFile):
            pass
        broken.append(path.name)
    return None, broken
