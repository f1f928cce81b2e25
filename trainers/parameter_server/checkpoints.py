"""A server's checkpoints on the volume: written atomically; loading takes the newest readable one.

The format is a NumPy archive with the bytes of each tensor and a JSON description. Reading it runs no code,
and each member has a checksum. The server decides when to save.
"""

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

KEEP = 2
NAME = re.compile(r"version-(\d+)\.npz")
TENSOR = "tensor"  # the key of a tensor in the JSON


def path_of(folder: Path, version: int) -> Path:
    """Return the path of a version, whether it exists or not."""
    return folder / f"version-{version:09d}.npz"


def save(folder: Path, version: int, state: dict[str, Any]) -> int:
    """Write a state and delete all but the newest `KEEP`; return its size in bytes.

    Args:
        folder: The server's folder; created if it does not exist.
        version: The shard's version.
        state: Dictionaries, lists, tensors, bytes, numbers and strings; keys are strings or integers.

    Raises:
        OSError: Writing failed; the older files are unchanged.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_plain(state, arrays))
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".new.{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, about=np.frombuffer(text.encode(), np.uint8), **_named(arrays))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path_of(folder, version))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    for old in _versions(folder)[KEEP:]:
        path_of(folder, old).unlink(missing_ok=True)
    return size


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest readable state (or None), and the names of broken files."""
    broken: list[str] = []
    for version in _versions(folder):
        path = path_of(folder, version)
        try:
            # Read as a whole, so that each member's checksum is verified here.
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            state = _rich(json.loads(arrays["about"].tobytes()), arrays)
            assert isinstance(state, dict), "as it was written"
            return state, broken
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            broken.append(path.name)
    return None, broken


def _versions(folder: Path) -> list[int]:
    """Return the versions that have a file, newest first."""
    if not folder.is_dir():
        return []
    matches = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _named(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"a{number}": array for number, array in enumerate(arrays)}


def _plain(value: object, arrays: list[np.ndarray]) -> object:
    """Convert a value for JSON; its tensors and bytes are stored separately."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        arrays.append(flat.numpy())
        about = [str(value.dtype).removeprefix("torch."), list(value.shape)]
        return {TENSOR: len(arrays) - 1, "about": about}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, np.uint8))
        return {TENSOR: len(arrays) - 1, "about": None}
    if isinstance(value, dict):
        return {"items": [[key, _plain(part, arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(part, arrays) for part in value]
    return value


def _rich(value: object, arrays: dict[str, np.ndarray]) -> object:
    if isinstance(value, list):
        return [_rich(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if "items" in value:
        return {key: _rich(part, arrays) for key, part in value["items"]}
    data = arrays[f"a{value[TENSOR]}"]
    if value["about"] is None:
        return data.tobytes()
    dtype, shape = value["about"]
    return torch.from_numpy(data.copy()).view(getattr(torch, dtype)).reshape(shape)
