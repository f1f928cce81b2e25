"""02: a file of which no reader sees a part. What is visible is looked up while its parts are handed over."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

OLD, NEW, OTHER = b"old " * 8, [b"first ", b"second ", b"third "], [b"another ", b"writer"]
HIDDEN = "a reader finds the old file or the new one, never a part"
ERROR = "an error on the way leaves the old file"
STUB = """
def save(parts, path):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
"""
EXERCISE = Exercise("save", seconds=5, stub=STUB)


@contextmanager
def volume(old: bytes | None = OLD) -> Iterator[Path]:
    """Make a folder for a checkpoint, with an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        if old is not None:
            path.write_bytes(old)
        yield path


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@contextmanager
def renames() -> Iterator[list[tuple[Path, bytes | None]]]:
    """Record the files that are renamed, by os, pathlib or shutil, and what they hold in that moment."""
    moves: list[tuple[Path, bytes | None]] = []
    recording = True

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if recording and event == "os.rename":
            source = Path(os.fsdecode(arguments[0])).absolute()
            moves.append((source, content(source)))

    sys.addaudithook(record)  # which cannot be removed again
    try:
        yield moves
    finally:
        recording = False


@EXERCISE.check("the file has all parts, in their order", essential=True)
def complete(save: Answer) -> None:
    with volume(None) as path:
        save(iter(NEW), path)
        if (written := content(path)) != b"".join(NEW):
            raise NotYet(f"after save() path has {describe(written)}, and should have {b''.join(NEW)!r}")


@EXERCISE.check(HIDDEN, essential=True)
def hidden(save: Answer) -> None:
    for old in (OLD, None):
        visible: list[bytes | None] = []

        def parts(path: Path, visible: list[bytes | None]) -> Iterator[bytes]:
            for part in NEW:
                yield part
                visible.append(content(path))

        with volume(old) as path, renames() as moves:
            save(parts(path, visible), path)
        if any(file != old for file in visible):
            gone = "the old file is gone" if None in visible else "path has not the old file any more"
            raise NotYet(f"while parts are written, {gone}: write to another name, and rename the whole file")
        if not moves:
            raise NotYet("path is opened, then written: a reader may come in between; rename a whole file")
        if moves[-1][1] != b"".join(NEW):
            raise NotYet("it is renamed before it is closed: its last bytes are still in Python's buffer")


@EXERCISE.check("the temporary file is on the same volume", after=HIDDEN)
def same_volume(save: Answer) -> None:
    with volume() as path, renames() as moves:
        save(iter(NEW), path)
    if (folder := moves[-1][0].parent) != path.parent:
        raise NotYet(f"{folder} is another file system than the volume, where a rename is a copy: use path's")


@EXERCISE.check(ERROR)
def error(save: Answer) -> None:
    with volume() as path:
        if not fails(save, path):
            raise NotYet("the error of `parts` is swallowed: the caller takes the old file for the new one")
        if (left := content(path)) != OLD:
            raise NotYet(f"after an error path has {describe(left)}, and should have the old file")


def fails(save: Answer, path: Path) -> bool:
    """Tell whether an error of the second part comes through."""

    def parts() -> Iterator[bytes]:
        yield NEW[0]
        raise RuntimeError("lost")

    try:
        save(parts(), path)
    except RuntimeError:
        return True
    return False


@EXERCISE.check("and no other file", after=ERROR)
def clean(save: Answer) -> None:
    with volume() as path:
        fails(save, path)
        if others := sorted(file.name for file in path.parent.iterdir() if file != path):
            raise NotYet(f"{', '.join(others)} stays for ever: delete it in an except or a finally")


@EXERCISE.check("two pods that save at once do not mix", after=HIDDEN)
def two(save: Answer) -> None:
    with volume() as path:

        def parts() -> Iterator[bytes]:
            yield NEW[0]
            save(iter(OTHER), path)
            yield from NEW[1:]

        try:
            save(parts(), path)
        except OSError:
            written = None
        else:
            written = content(path)
    if written != b"".join(NEW):
        raise NotYet(
            "both use one temporary name, and process ids of two pods are often equal: uuid.uuid4() never is"
        )
