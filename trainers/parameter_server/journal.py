"""The master's journal: JSON lines on the volume, from which a restarted master knows what has counted.

A file belongs to one master: ``journal-000007.jsonl`` begins with all that was known when it was made. A
master that starts makes the next one, and so does one whose file has grown long. Making it fails if it is
there already, so of two masters one sees that it has been followed, and stops (`Superseded`); what an old one
writes meanwhile is in a file that nobody reads any more.

Lines reach the disk together, a few times a second. What a sudden death loses is done again, and the servers
know it when they see it; so nobody waits for the disk. What the lines mean is not here.
"""

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

SYNC_SECONDS = 0.2
LONG = 50_000  # lines
NAME = re.compile(r"journal-(\d{6,})\.jsonl")


class Superseded(Exception):
    """Another master has taken over."""


def _path(folder: Path, number: int) -> Path:
    return folder / f"journal-{number:06d}.jsonl"


def _numbers(folder: Path) -> list[int]:
    found = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read(folder: Path) -> tuple[int, list[dict]]:
    """Return the newest journal that has a beginning, and its lines; (0, []) where there is none.

    A line that is torn ends it: what came after it never counted.
    """
    if not folder.is_dir():
        return 0, []
    for number in reversed(_numbers(folder)):
        lines = list(_lines(_path(folder, number)))
        if lines:
            return number, lines
    return 0, []


def _lines(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                return
            if not line.endswith("\n") or not isinstance(found, dict):
                return
            yield found


class Journal:
    """Write lines; they are on the disk soon after.

    Args:
        folder: Made if it is not there.
        beginning: The first line: all that is known now.

    Raises:
        Superseded: Another master was quicker.
    """

    def __init__(self, folder: Path, beginning: dict) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._length, self._torn = 0, False
        self._number = max(_numbers(folder), default=0)
        self._file = None
        self._begin(beginning)

    @property
    def long(self) -> bool:
        """Whether a new file is to begin: this one is long, or ends in a torn line."""
        return self._torn or self._length > LONG

    def write(self, line: dict) -> None:
        """Take a line; `flush` puts it on the disk."""
        with self._lock:
            self._lines.append(json.dumps(line, separators=(",", ":")) + "\n")
            self._length += 1

    def flush(self) -> None:
        """Put on the disk what has been taken so far.

        Raises:
            Superseded: Another master has taken over.
            OSError: The disk does not take it; the lines are kept for the next try.
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

    def renew(self, beginning: dict) -> None:
        """Begin a new file with all that is known now, and delete the old one.

        Raises:
            Superseded: Another master was quicker.
            OSError: The disk does not take it; the old one goes on.
        """
        old, number = self._file, self._number
        self._begin(beginning)
        with self._lock:
            self._lines.clear()  # what they say is in the beginning
        old.close()
        _path(self._folder, number).unlink(missing_ok=True)

    def close(self) -> None:
        """Put the rest on the disk."""
        self.flush()
        self._file.close()

    def _begin(self, beginning: dict) -> None:
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
