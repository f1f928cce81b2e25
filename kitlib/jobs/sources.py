"""A trainer's source, its imports and its flags: as a ConfigMap carries them, or the URL to fetch it from.

Python puts a script's folder first on its path, in the pods as here, so a trainer may import what is beside
it. Packages (folders) are not carried. ``trainers/fetch_trainer.py`` does the fetching, in the pods.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kitlib.errors import BadInput
from kitlib.k8s import names

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


def sources(*files: Path, offered: Collection[Path] = ()) -> dict[str, str]:
    """Read these files and all that they import from beside them, by file name.

    Args:
        files: The trainer, and other programs that it needs.
        offered: Modules that may be imported from anywhere.

    Raises:
        BadInput: One cannot be read or is no Python, or together they are too large for a ConfigMap.
    """
    found: dict[str, str] = {}
    waiting = list(files)
    while waiting:
        path = waiting.pop(0)
        if path.name in found:
            continue
        found[path.name], tree = _read(path)
        for module in _imports(tree):
            places = (path.with_name(f"{module}.py"), *(each for each in offered if each.stem == module))
            waiting += [each for each in places if each.is_file()][:1]
    size = sum(len(source.encode()) for source in found.values())
    if size > CONFIG_MAP_BYTES:
        others = f" with {', '.join(list(found)[1:])}" if len(found) > 1 else ""
        raise BadInput(
            f"the trainer has {size:,} bytes{others}, and a ConfigMap carries at most {CONFIG_MAP_BYTES:,}",
            about=f"trainer {files[0]}",
            fix="keep data out of the source; put it on a volume or into an image",
        )
    return found


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


def flags(args: Mapping | Sequence) -> list[str]:
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
