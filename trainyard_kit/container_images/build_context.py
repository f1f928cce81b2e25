"""The build context of an image: its files, a tag computed from them, and an archive.

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
        """The files of the context, sorted."""
        specific = self.dockerfile.with_name(f"{self.dockerfile.name}.dockerignore")
        rules = _rules(specific if specific.is_file() else self.folder / ".dockerignore")
        return tuple(sorted({*_walk(self.folder, self.folder, rules), self.dockerfile}))

    @cached_property
    def tag(self) -> str:
        """A hash of the files, their executable bits and the arguments."""
        digest = hashlib.sha256()
        for key, value in sorted(self.arguments.items()):
            digest.update(f"{key}={value}\0".encode())
        digest.update(f"{self.dockerfile_path}\0".encode())
        for path in self.files:
            mode = "x" if os.access(path, os.X_OK) else "-"
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            digest.update(f"{path.relative_to(self.folder)}\0{mode}{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:TAG_LENGTH]

    @property
    def dockerfile_path(self) -> str:
        """The Dockerfile's path relative to the folder."""
        return str(self.dockerfile.relative_to(self.folder))

    def archive(self, path: Path) -> Path:
        """Write the files to a zip file, for a remote builder."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self.files:
                archive.write(file.resolve(), str(file.relative_to(self.folder)))
        return path


Rule = tuple[bool, re.Pattern[str], str]  # whether it negates (!), its pattern, its literal prefix


def _rules(file: Path) -> list[Rule]:
    if not file.is_file():
        return []
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [_rule(line) for line in lines if line and not line.startswith("#")]


def _rule(line: str) -> Rule:
    negated = line.startswith("!")
    pattern = os.path.normpath(line[negated:].strip()).lstrip("/")
    return negated, re.compile(f"{_regex(pattern)}(?:/.*)?", re.DOTALL), re.split(r"[*?\[]", pattern)[0]


def _regex(pattern: str) -> str:
    """Convert a pattern of Go's filepath.Match, with ``**`` for any number of folders."""
    pieces = re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|\\.|.", pattern, re.DOTALL)
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        wildcards.get(piece)
        or (piece if piece.startswith("[") and len(piece) > 1 else re.escape(piece.removeprefix("\\")))
        for piece in pieces
    )


def _walk(folder: Path, root: Path, rules: list[Rule]) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        name = path.relative_to(root).as_posix()
        ignored = _ignored(name, rules)
        if entry.is_dir(follow_symlinks=False):
            if not ignored or _may_include(name, rules):
                yield from _walk(path, root, rules)
        elif not ignored:
            yield path


def _ignored(name: str, rules: list[Rule]) -> bool:
    """Whether a file is excluded: the last rule that matches it, or one of its folders, decides."""
    return next((not negated for negated, pattern, _ in reversed(rules) if pattern.fullmatch(name)), False)


def _may_include(folder: str, rules: list[Rule]) -> bool:
    """Whether a negated rule may include a file of an excluded folder."""
    path = f"{folder}/"
    prefixes = [prefix for negated, _, prefix in rules if negated]
    return any(prefix.startswith(path) or path.startswith(prefix) for prefix in prefixes)
