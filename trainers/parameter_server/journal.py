"""The master's journal: JSON lines on the volume, from which a restarted master restores its state.

A file belongs to one master: ``journal-000007.jsonl`` begins with a snapshot. A starting master creates the
next file, and so does one whose file has grown long. Creating a file fails if it exists, so of two masters
one detects that it has been superseded, and stops (`Superseded`); whatever the old one still writes is in a
file that is no longer read.

Lines are flushed to the disk together, a few times a second. Work lost by a sudden death is repeated, and the
servers recognise it, so no request waits for the disk. The meaning of the lines is defined elsewhere.
"""

import json
import os
import re
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

SYNC_SECONDS = 0.2
LONG = 50_000  # lines
NAME = re.compile(r"journal-(\d{6,})\.jsonl")


class Superseded(Exception):
    """Another master has taken over."""


def _path(folder: Path, number: int) -> Path:
    return folder / f"journal-{number:06d}.jsonl"


def _numbers(folder: Path) -> list[int]:
    matches = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read(folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the number and lines of the newest journal with a valid start; (0, []) if there is none.

    A truncated line ends it: later lines never counted.
    """
    if not folder.is_dir():
        return 0, []
    for number in reversed(_numbers(folder)):
        lines = list(_lines(_path(folder, number)))
        if lines:
            return number, lines
    return 0, []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not line.endswith("\n") or not isinstance(record, dict):
                return
            yield record


class Journal:
    """Write lines, which are flushed to the disk soon after.

    Args:
        folder: Created if it does not exist.
        beginning: The first line: a snapshot.

    Raises:
        Superseded: Another master was faster.
    """

    def __init__(self, folder: Path, beginning: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._length, self._torn = 0, False
        self._number = max(_numbers(folder), default=0)
        self._file: FileIO
        self._begin(beginning)

    @property
    def long(self) -> bool:
        """True if a new file is needed: this one is long, or ends in a truncated line."""
        return self._torn or self._length > LONG

    def write(self, line: dict[str, Any]) -> None:
        """Buffer a line; `flush` writes it to the disk."""
        with self._lock:
            self._lines.append(json.dumps(line, separators=(",", ":")) + "\n")
            self._length += 1

    def flush(self) -> None:
        """Write the buffered lines to the disk.

        Raises:
            Superseded: Another master has taken over.
            OSError: Writing failed; the lines are kept for the next attempt.
        """
        if _path(self._folder, self._number + 1).exists():
            raise Superseded(f"another master has begun journal {self._number + 1} in {self._folder}")
        with self._lock:
            lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            self._file.write("".join(lines).encode())
            os.fsync(self._file.fileno())
        except OSError:
            self._torn = True
            with self._lock:
                self._lines = lines + self._lines
            raise

    def renew(self, beginning: dict[str, Any]) -> None:
        """Start a new file with a snapshot, and delete the old one.

        Raises:
            Superseded: Another master was faster.
            OSError: Writing failed; the old file stays in use.
        """
        old, number = self._file, self._number
        self._begin(beginning)
        with self._lock:
            self._lines.clear()  # their content is in the snapshot
        old.close()
        _path(self._folder, number).unlink(missing_ok=True)

    def close(self) -> None:
        """Write the rest to the disk."""
        self.flush()
        self._file.close()

    def _begin(self, beginning: dict[str, Any]) -> None:
        path = _path(self._folder, self._number + 1)
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError as error:
            raise Superseded(f"another master has begun {path}") from error
        try:
            file.write(json.dumps(beginning, separators=(",", ":")).encode() + b"\n")
            os.fsync(file.fileno())
        except OSError:
            file.close()
            path.unlink()
            raise
        self._file, self._number = file, self._number + 1
        self._length, self._torn = 0, False
