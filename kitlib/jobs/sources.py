"""A trainer's source, its imports and its flags: as a ConfigMap carries them, or the URL to fetch it from.

Python puts a script's folder first on its path, in the pods as here, so a trainer may import the modules and
packages beside it. ``trainers/fetch_trainer.py`` does the fetching, in the pods; a function's source is in
`functions`.
"""

import ast
import base64
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kitlib.errors import BadInput
from kitlib.k8s import names
from kitlib.k8s.manifests import Object

CONFIG_MAP_BYTES = 1024 * 1024 - 4096  # etcd's limit, less what the object itself needs
_URL = re.compile(r"([a-z0-9]+)://([^/]*)/(.*)")
VOLUME = "volume"
_BUCKETS = ("s3", "gs")
_EXAMPLE = "s3://bucket/code/main.py, gs://bucket/code/main.py, or volume://shared/code/main.py"


@dataclass(frozen=True)
class Remote:
    """The address from which pods fetch a trainer.

    Attributes:
        scheme: ``s3``, ``gs`` or ``volume``.
        place: The bucket, or the volume.
        key: The trainer's path there.
        secret: Name of the Secret with the fetching program's environment variables; empty for none.
    """

    scheme: str
    place: str
    key: str
    secret: str = ""

    @property
    def name(self) -> str:
        """The trainer's file name."""
        return PurePosixPath(self.key).name

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.place}/{self.key}"

    @property
    def claim(self) -> str:
        """The volume with the trainer; empty if it is elsewhere."""
        return self.place if self.scheme == VOLUME else ""


def remote(trainer: object, secret: str | None) -> Remote | None:
    """Parse a trainer's URL; None for a trainer that is a file here.

    Raises:
        BadInput: The URL is invalid, or a secret is given for a trainer that is not fetched.
    """
    if "://" not in str(trainer):
        if secret is not None:
            raise BadInput(
                "a secret is for trainers that are fetched",
                about=f"source_secret={secret!r}, trainer {trainer}",
                fix=f"leave it out, or name a trainer such as {_EXAMPLE}",
            )
        return None
    found = _URL.fullmatch(str(trainer))
    scheme, place, key = found.groups() if found else ("", "", "")
    if scheme not in (*_BUCKETS, VOLUME) or not place or not key.endswith(".py") or ".." in key.split("/"):
        fix = f"write it as {_EXAMPLE}"
        raise BadInput("this is no address of a trainer", about=f"trainer {trainer}", fix=fix)
    if scheme == VOLUME:
        names.validate_name(place, kind="volume")
    if secret is not None:
        names.validate_name(secret, kind="secret")
    return Remote(scheme, place, key, secret or "")


Sources = dict[str, str | bytes]  # by path, relative to the trainer's folder


def sources(*programs: Path, offered: Collection[Path] = (), files: Iterable[str | Path] = ()) -> Sources:
    """Read these programs, and all that they import from beside them, by their path below their folder.

    Args:
        programs: The trainer, and other programs that it needs.
        offered: Modules that may be imported from anywhere.
        files: Files and folders that the first program reads, relative to its folder.

    Raises:
        BadInput: One cannot be read or is no Python, or together they are too large for a ConfigMap.
    """
    found: Sources = {}
    waiting = [(path, path.parent) for path in programs]
    while waiting:
        path, root = waiting.pop(0)
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        found[name], tree = _read(path)
        for module in _imports(tree):
            places = (root / f"{module}.py", *(each for each in offered if each.stem == module))
            file = next((each for each in places if each.is_file()), None)
            package = [] if file else sorted((root / module).rglob("*.py"))
            waiting += [(file, file.parent)] if file else [(each, root) for each in package]
    for path in _listed(programs[0], files):
        found[path.relative_to(programs[0].parent).as_posix()] = _content(path)
    return check_size(found, about=f"trainer {programs[0]}")


def check_size(found: Sources, *, about: str) -> Sources:
    """Return the sources if a ConfigMap can carry them.

    Raises:
        BadInput: They are too large.
    """
    sizes = {name: len(each.encode() if isinstance(each, str) else each) for name, each in found.items()}
    if sum(sizes.values()) > CONFIG_MAP_BYTES:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        raise BadInput(
            f"the trainer and its files have {sum(sizes.values()):,} bytes, and a ConfigMap carries at most "
            f"{CONFIG_MAP_BYTES:,}; the largest: " + ", ".join(f"{each} {sizes[each]:,}" for each in largest),
            about=about,
            fix='put data on a volume: volume.upload("data"), and volumes={"/data": volume} for the job; '
            "or all of it into an image",
        )
    return found


def data_of(found: Sources) -> Object:
    """Build the ``data`` and ``binaryData`` of the ConfigMap that carries them."""
    text = {_key(name): each for name, each in found.items() if isinstance(each, str)}
    binary = {
        _key(name): base64.b64encode(each).decode() for name, each in found.items() if isinstance(each, bytes)
    }
    return {"data": text} | ({"binaryData": binary} if binary else {})


def volume_of(found: Sources, *, name: str) -> Object:
    """Build the pods' volume with the files at their paths, from the ConfigMap of that name."""
    items = [{"key": _key(path), "path": path} for path in found]
    nested = any(each["key"] != each["path"] for each in items)
    return {"name": "trainer", "configMap": {"name": name} | ({"items": items} if nested else {})}


def _key(path: str) -> str:
    """Turn a path into a key of a ConfigMap, which has no slashes."""
    return re.sub(r"[^-._a-zA-Z0-9]", "_", path.replace("/", "..")).lstrip(".") or "_"


def _listed(program: Path, files: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the files that are named, and those in the folders that are named."""
    if isinstance(files, str):
        raise BadInput("files is a list", about=f"files={files!r}", fix=f"files=[{files!r}]")
    for each in files:
        path = (program.parent / Path(each).expanduser()).resolve()
        if not path.exists() or not path.is_relative_to(program.parent) or path == program.parent:
            raise BadInput(
                "there is no such file or folder beside the trainer",
                about=f"{each}, looked for in {program.parent}",
                fix="name files and folders below the trainer's, or put them on a volume",
            )
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in inside if file.is_file() and "__pycache__" not in file.parts)


def _content(path: Path) -> str | bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "name files that you can read"
        raise BadInput(f"a file cannot be read: {error.strerror}", about=str(path), fix=fix) from error
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def imports(source: str) -> set[str]:
    """List the top-level modules that a program imports."""
    return set(_imports(ast.parse(source)))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _read(path: Path) -> tuple[str, ast.Module]:
    about = f"trainer {path}"
    try:
        source = path.read_text(encoding="utf-8")
        return source, ast.parse(source, filename=str(path))
    except OSError as error:
        fix = "give the path of a file that you can read"
        raise BadInput(f"the trainer cannot be read: {error.strerror}", about=about, fix=fix) from error
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise BadInput(
            f"the trainer is not valid Python: {error.msg}",
            about=f"{about}, line {error.lineno}: {line}",
            fix="correct that line",
        ) from error
    except ValueError as error:  # bytes that are no UTF-8, or a null byte
        fix = "give a .py file"
        raise BadInput(f"the trainer is no Python source: {error}", about=about, fix=fix) from error


def flags(args: Mapping[str, Any] | Sequence[object]) -> list[str]:
    """Convert a trainer's flags to command-line words.

    Example:
        >>> flags({"epochs": 3, "log_every": 5, "amp": True, "resume": None})
        ['--epochs=3', '--log-every=5', '--amp']

    Raises:
        BadInput: It is neither a dict nor a list.
    """
    if isinstance(args, Mapping):
        words = [
            f"--{str(key).replace('_', '-')}" + ("" if value is True else f"={value}")
            for key, value in args.items()
            if value is not None and value is not False
        ]
    elif isinstance(args, Sequence) and not isinstance(args, str | bytes):
        words = [str(each) for each in args]
    else:
        what = "a trainer's arguments are a dict or a list"
        raise BadInput(what, about=f"args={args!r}", fix='args={"epochs": 3}')
    return [word.replace("$(", "$$(") for word in words]  # or Kubernetes would expand it
