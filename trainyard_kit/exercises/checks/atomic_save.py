"""02: save a file atomically. The checks read the path while the learner's function consumes the parts."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

OLD, NEW, OTHER = b"old " * 8, [b"first ", b"second ", b"third "], [b"another ", b"writer"]
NEVER_PARTIAL = "a reader sees the old file or the new one, never a partial one"
ERROR_KEEPS_FILE = "an error while saving leaves the old file"
STUB = """
def save(parts, path):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
"""
EXERCISE = Exercise("save", seconds=5, stub=STUB)


@contextmanager
def volume(old: bytes | None = OLD) -> Iterator[Path]:
    """Make a directory for a checkpoint, with an earlier checkpoint in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        if old is not None:
            path.write_bytes(old)
        yield path


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@contextmanager
def renames() -> Iterator[list[tuple[Path, bytes | None]]]:
    """Record the files that os, pathlib or shutil rename, with their content at that moment."""
    moves: list[tuple[Path, bytes | None]] = []
    recording = True

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if recording and event == "os.rename":
            source = Path(os.fsdecode(arguments[0])).absolute()
            moves.append((source, content(source)))

    sys.addaudithook(record)  # it cannot be removed
    try:
        yield moves
    finally:
        recording = False


@EXERCISE.check("the file contains all parts in order", essential=True)
def all_parts_in_order(save: Answer) -> None:
    with volume(None) as path:
        save(iter(NEW), path)
        if (written := content(path)) != b"".join(NEW):
            raise NotYet(
                f"after save() path contains {describe(written)}, and should contain {b''.join(NEW)!r}"
            )


@EXERCISE.check(NEVER_PARTIAL, essential=True)
def never_partial(save: Answer) -> None:
    for old in (OLD, None):
        visible: list[bytes | None] = []

        def parts(path: Path, visible: list[bytes | None]) -> Iterator[bytes]:
            for part in NEW:
                yield part
                visible.append(content(path))

        with volume(old) as path, renames() as moves:
            save(parts(path, visible), path)
        if any(file != old for file in visible):
            gone = "the old file is gone" if None in visible else "path no longer contains the old file"
            raise NotYet(
                f"while parts are written, {gone}: write to another name, then rename the complete file"
            )
        if not moves:
            raise NotYet("path is opened, then written: a reader may read in between; rename a complete file")
        if moves[-1][1] != b"".join(NEW):
            raise NotYet("it is renamed before it is closed: the last bytes are still in Python's buffer")


@EXERCISE.check("the temporary file is on the same volume", after=NEVER_PARTIAL)
def same_volume(save: Answer) -> None:
    with volume() as path, renames() as moves:
        save(iter(NEW), path)
    if (folder := moves[-1][0].parent) != path.parent:
        raise NotYet(
            f"{folder} may be on another file system, where a rename is a copy: use the directory of path"
        )


@EXERCISE.check(ERROR_KEEPS_FILE)
def error_keeps_old_file(save: Answer) -> None:
    with volume() as path:
        if not fails(save, path):
            raise NotYet(
                "the error of `parts` is swallowed: the caller would take the old file for the new one"
            )
        if (left := content(path)) != OLD:
            raise NotYet(f"after an error path contains {describe(left)}, and should contain the old file")


def fails(save: Answer, path: Path) -> bool:
    """Check whether an error in the second part is raised to the caller."""

    def parts() -> Iterator[bytes]:
        yield NEW[0]
        raise RuntimeError("lost")

    try:
        save(parts(), path)
    except RuntimeError:
        return True
    return False


@EXERCISE.check("an error leaves no other file", after=ERROR_KEEPS_FILE)
def no_leftover_files(save: Answer) -> None:
    with volume() as path:
        fails(save, path)
        if remaining := sorted(file.name for file in path.parent.iterdir() if file != path):
            raise NotYet(f"{', '.join(remaining)} is left behind: delete it in an except or finally clause")


@EXERCISE.check("two pods that save at the same time do not interfere", after=NEVER_PARTIAL)
def concurrent_saves(save: Answer) -> None:
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
            "both use the same temporary name; process ids of two pods are often equal, so use uuid.uuid4()"
        )
