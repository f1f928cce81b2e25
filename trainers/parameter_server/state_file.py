"""The master's state on the volume, from which a restarted master continues.

A file belongs to one master. A starting one creates the next, ``state-000007.json``, which fails if it
exists; so of two masters the older detects that it has been superseded, and stops (`Superseded`). Whatever it
still writes is in a file that is no longer read.

The file is replaced a few times a second. Work lost by a sudden death is repeated, and the servers recognise
it, so no request waits for the disk.
"""

import json
import os
from pathlib import Path
from typing import Any

PATTERN = "state-*.json"


class Superseded(Exception):
    """Another master has taken over."""


def read(folder: Path) -> tuple[int, dict[str, Any] | None]:
    """Return the number and the content of the newest complete file; (0, None) if there is none."""
    for path in sorted(folder.glob(PATTERN), reverse=True):
        try:
            return _number(path), json.loads(path.read_text("utf-8"))
        except ValueError:  # its master died at once
            continue
    return 0, None


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("state-"))


class StateFile:
    """One master's file.

    Args:
        folder: Created if it does not exist.

    Raises:
        Superseded: Another master was faster.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._saved = folder, ""
        self._number = max(map(_number, folder.glob(PATTERN)), default=0) + 1
        try:
            self._path(self._number).touch(exist_ok=False)
        except FileExistsError as error:
            raise Superseded(f"another master has begun {self._path(self._number)}") from error

    def save(self, state: dict[str, Any]) -> None:
        """Replace the content of the file, if it has changed.

        Raises:
            Superseded: Another master has taken over.
            OSError: Writing failed; the older content is unchanged.
        """
        if self._path(self._number + 1).exists():
            raise Superseded(f"another master has begun state {self._number + 1} in {self._folder}")
        text = json.dumps(state)
        if text == self._saved:
            return
        temporary = self._folder / f".new.{self._number}"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path(self._number))
        self._saved = text

    def _path(self, number: int) -> Path:
        return self._folder / f"state-{number:06d}.json"
