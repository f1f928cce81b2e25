"""Local files that a program refers to by relative paths: in its text, its arguments or its settings.

On this machine its working directory is its own folder, or the one from which it is started. What is named
with ``files=`` and what is read beside ``__file__`` is in `sources`; what lies above the working directory
needs a volume.
"""

import ast
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath

from kitlib.jobs.layout import Layout, literal_paths
from kitlib.jobs.sources import DISK_BYTES, DISK_FILES, Sources, content_of, fits, texts_of
from kitlib.jobs.syntax import parse
from kitlib.k8s.quantities import format_bytes

log: logging.Logger = logging.getLogger(__name__)
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".txt")
PROGRAMS = 100  # of a project, which are read for the paths in them
_SETTINGS_BYTES = 256 * 1024
TOO_LARGE = '%s is not sent (too large for a ConfigMap): volume.upload("%s") and volumes= carry it'
_OUTPUTS = ("runs", "logs", "log", "output", "outputs", "wandb", "mlruns", "lightning_logs", "tb_logs")


def find_referenced_files(
    layout: Layout, args: list[str], sources: Sources, *, folders: bool, literals: bool
) -> dict[str, dict[str, Path]]:
    """Find the local files and folders to which a program, its arguments or its settings refer.

    Args:
        layout: Of the program.
        args: Its arguments.
        sources: The files of the project that are sent already.
        folders: Find folders, too.
        literals: Search the program and its settings; otherwise its arguments alone.

    Returns:
        Files by their path below the working directory, by the path that refers to them.
    """
    start = Path.cwd()
    places = [layout.base, *([start] if layout.base.is_relative_to(start) else [])]
    words = [part for word in args for part in (word, word.partition("=")[2])]
    candidates = [(word, place) for word in words for place in dict.fromkeys([*places, start])]
    programs = [layout.name, *(name for name in sources if name.endswith(".py"))] if literals else []
    for program in dict.fromkeys(programs[:PROGRAMS]):
        words = [*_literals(sources[program], layout)]
        candidates += [(word, place) for word in words for place in places]
    results: dict[str, dict[str, Path]] = {}
    for word, place in candidates:  # grows while settings are read
        path = PurePosixPath(word)
        name = path.as_posix()
        if not word or name in (".", *results) or path.is_absolute() or ".." in path.parts:
            continue
        files = _files(place / path, folders=folders)
        if files:
            results[name] = {(path / below).as_posix(): file for below, file in files.items()}
        if literals and len(files) == 1 and path.suffix in _SETTINGS and "." in files:
            settings = str(content_of(files["."])) if files["."].stat().st_size < _SETTINGS_BYTES else ""
            candidates += [(part, place) for part in re.findall(r"[\w./-]{3,200}", settings)]
    return results


def add_referenced_files(
    layout: Layout,
    sources: Sources,
    files: list[str],
    referenced: Mapping[str, Mapping[str, Path]],
    *,
    local: bool,
) -> tuple[Sources, list[str]]:
    """Add the referenced files to the sources and to the files of the working directory.

    What a ConfigMap cannot carry is sent to local nodes alone, which see this disk.
    """
    for name, paths in referenced.items():
        if any(PurePosixPath(name).is_relative_to(file) for file in files):
            continue
        more = {
            (PurePosixPath(layout.folder) / path).as_posix(): content_of(file) for path, file in paths.items()
        }
        if not local and not fits({**sources, **more}):
            log.warning(TOO_LARGE, name, name)
            continue
        sources = {**more, **sources}
        files = [*(file for file in files if not PurePosixPath(file).is_relative_to(name)), name]
    if added := [name for name in files if name in referenced and name != layout.name]:
        size = sum(path.stat().st_size for name in added for path in referenced[name].values())
        log.warning("%s refers to %s: sent with it, %s", layout.name, ", ".join(added), format_bytes(size))
    return sources, files


def _files(place: Path, *, folders: bool) -> dict[str, Path]:
    """List a file as ``.``, or the files in a folder; none if they are too large or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        files = {".": place}
        if not place.is_file():
            below = place.rglob("*") if folders and place.is_dir() else ()
            paths = (path for path in below if path.is_file() and "__pycache__" not in path.parts)
            files = {path.relative_to(place).as_posix(): path for path in islice(paths, DISK_FILES + 1)}
        size = sum(path.stat().st_size for path in files.values())
        if len(files) <= DISK_FILES and size <= DISK_BYTES:
            return files
        log.warning("%s is not sent (%s): volume.upload() and volumes= carry it", place, format_bytes(size))
    return {}


def _literals(text: str | bytes, layout: Layout) -> Iterator[str]:
    """Yield the paths in a source, and the folder of each computed one, but not files beside ``__file__``."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = parse(text)
        beside = {*literal_paths(tree, layout.program, anchored=True)}
        keys = {node.value for node in _keys(tree) if isinstance(node, ast.Constant)}
        for word in texts_of(tree):
            if layout.base / word in beside and (layout.base / word).is_file() or word in _OUTPUTS:
                continue
            if word in keys and "/" not in word and "." not in word:
                continue
            if not (layout.base / word / "__init__.py").exists():  # a package, which is imported
                yield word
            if "/" in word and not (layout.base / word).exists():
                yield word.rpartition("/")[0]


def _keys(tree: ast.Module) -> Iterator[ast.expr | None]:
    """Yield the texts that name no file: keys, indices and members of collections."""
    for node in ast.walk(tree):
        match node:
            case ast.Dict(keys=keys):
                yield from keys
            case ast.Subscript(slice=key):
                yield key
            case ast.Tuple(elts=members) | ast.List(elts=members) | ast.Set(elts=members):
                yield from members
