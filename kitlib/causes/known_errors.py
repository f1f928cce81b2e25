"""Errors of programs, torch, NCCL and the driver whose text does not say what to do.

All were recorded from PyTorch, NCCL, CUDA, etcd and the C library; they are in ``rules/known_errors.toml``.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class KnownError:
    """An error, recognized by its text.

    Attributes:
        kind: Its name in `docs/why.md`.
        words: A regular expression of its text.
        means: What it means, as evidence.
        fix: What to do.
        lasts: Whether it counts without a traceback: in the log of a rank that ended, or still runs.
        code: The exit code of an error that has no text.
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
# The first part of a path relative to the working directory, where the files of files= are placed.
_RELATIVE = re.compile(r"No such file or directory: '(?:\./)?(?!\.{1,2}/|/)([^'/\n]+)")
# The same for a parent path or an absolute path, which only a volume can provide.
_ABOVE = re.compile(r"No such file or directory: '((?:\./)?\.\./|/)([^'\n./][^'\n]*)'")
# The messages of shells that do not find a program.
_NOT_FOUND = re.compile(
    r"^(?:(?:[\w./-]{1,80}: ){0,2}(?:line )?\d{1,6}: |(?:sh|bash|ash|dash): )?"
    r"([\w./+-]{1,80}): (?:command not found|not found)$"
)


def missing_program(lines: Sequence[str]) -> tuple[str, str]:
    """Find a program that a shell did not find, and the line, at the end of a log; empty if there is none."""
    matches = (_NOT_FOUND.match(line.strip()[:200]) for line in reversed(lines[-3:]))
    return next(((match[1], match[0]) for match in matches if match), ("", ""))


@cache
def _errors() -> tuple[KnownError, ...]:
    text = (Path(__file__).parent / "rules" / "known_errors.toml").read_text("utf-8")
    return tuple(KnownError(**entry) for entry in tomllib.loads(text)["error"])


def by_code(code: int) -> KnownError | None:
    """Find the meaning of a shell's exit code for a command that it could not start."""
    return next((error for error in _errors() if code and error.code == code), None)


def _mounted(prefix: str, path: str) -> str:
    """Suggest the mount that gives a file its path in a pod: a volume keeps the uploaded file's name."""
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
    """Find the meaning of an error's text; with ``lasting`` among the errors that need no traceback."""
    errors = (error for error in _errors() if error.words and (error.lasts or not lasting))
    meaning = next((error for error in errors if error.matches(text)), None)
    if meaning and meaning.kind == "NoSuchFile" and (place := _RELATIVE.search(text[:LONGEST])):
        return replace(meaning, fix=meaning.fix.replace("…", f'"{place[1]}"', 1))
    if meaning and meaning.kind == "NoSuchFile" and (place := _ABOVE.search(text[:LONGEST])):
        return replace(meaning, fix=_mounted(place[1], place[2]))
    return meaning
