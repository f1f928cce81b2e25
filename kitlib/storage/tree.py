"""Walk a folder to copy: one rule for links, wherever files are copied or counted.

A link to a file in the folder stays a link, where the copy can have links. One that leads outside is
followed, since the copy does not have its target. Broken and circular links, sockets and pipes are left out
and named. `kubectl cp` sends links as they are, and fetches none.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileEntry:
    """A file, a folder or a link below a folder.

    Attributes:
        path: Below the folder; empty for the folder itself.
        source: The file with its content; outside the folder if a link leads there.
        link: The target of a link that stays one, relative to where it lies; empty for all others.
    """

    path: str
    source: Path
    link: str = ""


def walk(root: Path, *, skipped: list[str], links: bool = True) -> Iterator[FileEntry]:
    """Walk a file or folder by names; ``skipped`` gets what is left out; links are kept, or followed."""
    yield from _Walk(skipped, links).visit(root.resolve(), "", root.resolve(), frozenset())


@dataclass(frozen=True)
class _Walk:
    skipped: list[str]
    links: bool

    def visit(self, place: Path, path: str, base: Path, above: frozenset[Path]) -> Iterator[FileEntry]:
        """Walk a path in the folders ``above``; links to below ``base`` lead inside."""
        if place.is_symlink():
            yield from self._link(place, path, base, above)
        elif place.is_dir():
            yield FileEntry(path, place)
            for child in sorted(place.iterdir()):
                name = f"{path}/{child.name}" if path else child.name
                yield from self.visit(child, name, base, above | {place})
        elif place.is_file():
            yield FileEntry(path, place)
        else:
            self.skipped.append(f"{path!r} is no file")

    def _link(self, place: Path, path: str, base: Path, above: frozenset[Path]) -> Iterator[FileEntry]:
        target = place.readlink()
        # An absolute target may be written by another name of the folder.
        lexical = target.parent.resolve() / target.name if target.is_absolute() else place.parent / target
        if self.links and Path(os.path.normpath(lexical)).is_relative_to(base):
            text = os.path.relpath(lexical, place.parent) if target.is_absolute() else str(target)
            yield FileEntry(path, place, text)
            return
        try:
            real = place.resolve(strict=True)
        except (OSError, RuntimeError):  # the latter for a circle, before Python 3.13
            self.skipped.append(f"{path!r} leads nowhere")
            return
        if any(folder.is_relative_to(real) for folder in above):
            self.skipped.append(f"{path!r} leads to a folder that it is in")
            return
        yield from self.visit(real, path, real, above)
