"""The build context of an image: the files that a builder is sent, a tag computed from them, and an archive.

The rules of ``.dockerignore`` are Docker's: https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TAG_LENGTH = 12


@dataclass(frozen=True)
class BuildContext:
    """A folder, a Dockerfile in it, and the values of its ``ARG``."""

    folder: Path
    dockerfile: Path
    arguments: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files that a builder is sent, in order."""
        own = self.dockerfile.with_name(f"{self.dockerfile.name}.dockerignore")
        rules = _rules(own if own.is_file() else self.folder / ".dockerignore")
        found = set(_walk(self.folder, self.folder, rules))
        return tuple(sorted(found | {self.dockerfile}))

    @cached_property
    def tag(self) -> str:
        """A tag that changes with any of the files, their modes and the arguments, and with nothing else."""
        digest = hashlib.sha256()
        for key, value in sorted(self.arguments.items()):
            digest.update(f"{key}={value}\0".encode())
        digest.update(f"{self.within}\0".encode())
        for path in self.files:
            runs = "x" if os.access(path, os.X_OK) else "-"
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            digest.update(f"{path.relative_to(self.folder)}\0{runs}{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:TAG_LENGTH]

    @property
    def within(self) -> str:
        """The Dockerfile's path in the folder."""
        return str(self.dockerfile.relative_to(self.folder))

    def archive(self, path: Path) -> Path:
        """Write the files into a zip file, for a builder that is elsewhere."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self.files:
                archive.write(file.resolve(), str(file.relative_to(self.folder)))
        return path


Rule = tuple[bool, re.Pattern[str], str]  # whether it brings back, what it matches, its literal beginning


def _rules(file: Path) -> list[Rule]:
    if not file.is_file():
        return []
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [_rule(line) for line in lines if line and not line.startswith("#")]


def _rule(line: str) -> Rule:
    back = line.startswith("!")
    pattern = os.path.normpath(line[back:].strip()).lstrip("/")
    return back, re.compile(f"{_regex(pattern)}(?:/.*)?", re.DOTALL), re.split(r"[*?\[]", pattern)[0]


def _regex(pattern: str) -> str:
    """Translate Go's filepath.Match, with ``**`` for any number of folders, to a regular expression."""
    pieces = re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|\\.|.", pattern, re.DOTALL)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        words.get(piece)
        or (piece if piece.startswith("[") and len(piece) > 1 else re.escape(piece.removeprefix("\\")))
        for piece in pieces
    )


def _walk(folder: Path, root: Path, rules: list[Rule]) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        name = path.relative_to(root).as_posix()
        ignored = _ignored(name, rules)
        if entry.is_dir(follow_symlinks=False):
            if not ignored or _may_hold(name, rules):
                yield from _walk(path, root, rules)
        elif not ignored:
            yield path


def _ignored(name: str, rules: list[Rule]) -> bool:
    """Whether a file is left out: the last rule that matches it, or a folder it is in, decides."""
    return next((not back for back, pattern, _ in reversed(rules) if pattern.fullmatch(name)), False)


def _may_hold(folder: str, rules: list[Rule]) -> bool:
    """Whether a later rule may include something in an ignored folder."""
    inside = f"{folder}/"
    return any(back and (start.startswith(inside) or inside.startswith(start)) for back, _, start in rules)
