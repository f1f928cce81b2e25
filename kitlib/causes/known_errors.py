"""Errors that a program, torch, NCCL or the driver words in a way that hides what to do.

Each was recorded: of PyTorch, NCCL, CUDA, etcd and the C library; they stand in ``rules/known_errors.toml``.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class KnownError:
    """An error, by its words.

    Attributes:
        kind: Its name in `docs/why.md`.
        words: A regular expression of its text.
        means: What it means, as evidence.
        fix: What to do.
        lasts: Whether it is one in the log of a rank that ended without a traceback, or still runs.
        code: Of an error that an exit code alone tells.
    """

    kind: str
    words: str
    means: str
    fix: str
    lasts: bool = False
    code: int = 0

    def matches(self, text: str) -> bool:
        return re.search(self.words, text[:LONGEST], re.IGNORECASE | re.DOTALL) is not None


LONGEST = 8000  # characters
# The first part of a path that is relative to the working directory, where what files= names is put.
_RELATIVE = re.compile(r"No such file or directory: '(?:\./)?(?!\.{1,2}/|/)([^'/\n]+)")
# The same of a path above it, or from the root, which a volume alone can have.
_ABOVE = re.compile(r"No such file or directory: '((?:\./)?\.\./|/)([^'\n./][^'\n]*)'")
# What shells say of a program that they do not find.
_NOT_FOUND = re.compile(
    r"^(?:(?:[\w./-]{1,80}: ){0,2}(?:line )?\d{1,6}: |(?:sh|bash|ash|dash): )?"
    r"([\w./+-]{1,80}): (?:command not found|not found)$"
)


def missing_program(lines: Sequence[str]) -> tuple[str, str]:
    """Find a program that a shell did not find, by the end of a log, and the line; empty for none."""
    matches = (_NOT_FOUND.match(line.strip()[:200]) for line in reversed(lines[-3:]))
    return next(((match[1], match[0]) for match in matches if match), ("", ""))


@cache
def _errors() -> tuple[KnownError, ...]:
    text = (Path(__file__).parent / "rules" / "known_errors.toml").read_text("utf-8")
    return tuple(KnownError(**entry) for entry in tomllib.loads(text)["error"])


def by_code(code: int) -> KnownError | None:
    """Find what an exit code of a shell says that could not start what it was to start."""
    return next((error for error in _errors() if code and error.code == code), None)


def _mounted(prefix: str, path: str) -> str:
    """Name the mount with which a file has its path in a pod: a volume keeps the name of what is uploaded."""
    *folders, name = path.strip("/").split("/")
    *above, folder = folders or [""]
    upload, mount = (f"{folder}/{name}", folder) if not above else ("/".join(folders), "/".join(above))
    upload, then = f'`volume.upload("{prefix}{upload}")`', "pods start in /workspace; "
    if not folders or folders == ["tmp"]:
        mount, upload = "data", f'`volume.upload("{name}")`, and "/data/{name}" in the program'
        then = "a pod has its own / and /tmp, which is also its ~; "
    fix = f'`volumes={{"/{mount}": volume}}`, after {upload}: {then}'
    return f"{fix}or `files=[…]` for what is beside the program; `run.logs()` shows the path"


def known(text: str, *, lasting: bool = False) -> KnownError | None:
    """Find what a text of an error says; with ``lasting`` of the errors that need no traceback."""
    errors = (error for error in _errors() if error.words and (error.lasts or not lasting))
    meaning = next((error for error in errors if error.matches(text)), None)
    if meaning and meaning.kind == "NoSuchFile" and (place := _RELATIVE.search(text[:LONGEST])):
        return replace(meaning, fix=meaning.fix.replace("…", f'"{place[1]}"', 1))
    if meaning and meaning.kind == "NoSuchFile" and (place := _ABOVE.search(text[:LONGEST])):
        return replace(meaning, fix=_mounted(place[1], place[2]))
    return meaning
