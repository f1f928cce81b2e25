"""A trainer's source, its imports and its flags: as a ConfigMap carries them, or the URL to fetch it from.

Python puts a script's folder first on its path, in the pods as here, so a trainer may import the modules and
packages beside it. ``trainers/fetch_trainer.py`` does the fetching, in the pods; a function's source is in
`functions`.
"""

import ast
import base64
import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.flags import command_line
from kitlib.jobs.layout import Layout, files_of, is_installed, literal_paths
from kitlib.jobs.syntax import parse
from kitlib.k8s import names
from kitlib.k8s.manifests import Object
from kitlib.storage.tree import walk

log: logging.Logger = logging.getLogger(__name__)
CONFIG_MAP_BYTES = 1024 * 1024 - 4096  # etcd's limit, less what the object itself needs
LONGEST_NAME = 200  # of a file that a source names
MAX_FILES = 2000  # each is named in the pods' manifest, which has the same limit
DISK_BYTES, DISK_FILES = 256 * 1024 * 1024, 20_000  # of what is copied to where local nodes see it
_PLAIN = re.compile(r"[-_a-zA-Z0-9]([-._a-zA-Z0-9]*[-_a-zA-Z0-9])?")
_URL = re.compile(r"([a-z0-9]+)://([^/]*)/(.*)")
_DYNAMIC = ("import_module", "__import__", "get_data", "files", "locate", "instantiate")
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
    """Parse a trainer's URL; None for a trainer that is a file here."""
    if "://" not in str(trainer):
        if secret is not None:
            about = f"source_secret={secret!r}, trainer {trainer}"
            fix = f"leave it out, or name a trainer such as {_EXAMPLE}"
            raise BadInput("a secret is for trainers that are fetched", about=about, fix=fix)
        return None
    address = _URL.fullmatch(str(trainer))
    scheme, place, key = address.groups() if address else ("", "", "")
    if scheme not in (*_BUCKETS, VOLUME) or not place or not key.endswith(".py") or ".." in key.split("/"):
        fix = f"write it as {_EXAMPLE}"
        raise BadInput("this is not the address of a trainer", about=f"trainer {trainer}", fix=fix)
    if scheme == VOLUME:
        names.validate_name(place, kind="volume")
    if secret is not None:
        names.validate_name(secret, kind="secret")
    return Remote(scheme, place, key, secret or "")


Sources = dict[str, str | bytes]  # by path, relative to the trainer's folder


def sources(*programs: Path, generated: Mapping[Path, str] = MappingProxyType({})) -> Sources:
    """Read these programs, and the modules beside them that they import, by their path below their folder.

    Args:
        programs: The trainer, and other programs that it needs.
        generated: The sources of programs that are not files.
    """
    contents: Sources = {}
    for program in programs:
        contents |= collect(Layout(program, program.parent), generated=generated)[0]
    return check_size(contents, about=f"trainer {programs[0]}")


def collect(
    layout: Layout,
    *,
    shared_modules: Collection[Path] = (),
    files: Iterable[str] = (),
    generated: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[Sources, Layout]:
    """Read a trainer and the modules of its project that it imports, by their path below the layout's root.

    A package is carried whole, with its data, but only what is imported from it must be valid Python.

    Args:
        layout: Where modules are looked for.
        shared_modules: Modules that any file of the project may import.
        files: Files and folders that the trainer reads, as `normalise_files` returns them.
        generated: The sources of programs that are not files.
    """
    contents: dict[Path, str | bytes] = {}
    bases: dict[Path, Path] = {}
    imported, packages = set[Path](), set[Path]()
    folder = layout.root if layout.module else layout.program.parent
    waiting = [(layout.program, folder, True)]
    settings = "".join(
        str(content_of(path))
        for _, path in _files_below(layout.base, files, skipped=[])
        if path.suffix in (".yaml", ".yml", ".json", ".toml") and path.stat().st_size < CONFIG_MAP_BYTES
    )
    while waiting:
        path, base, needed = waiting.pop(0)
        if path in imported or (path in contents and not needed):
            continue
        content = contents[path] = generated.get(path) or content_of(path)
        bases[path] = base
        imported |= {path} if needed else set()
        if path.suffix != ".py" and path not in generated:
            continue
        name = PurePosixPath(path.relative_to(base))
        places = dict.fromkeys([base, folder, *layout.searched])
        modules = _modules(content, name, about=str(path), needed=needed)
        for module in [*modules, *(_dynamic_imports(content, settings, [*places]) if needed else ())]:
            waiting += _module_files(
                module, [*places], shared_modules, packages, needed=needed, guessed=layout.guessed
            )
        if needed:
            waiting += _read_beside(content, path, base)
    layout = layout.with_used({*bases.values()})
    sent = {
        path.relative_to(layout.root if path.is_relative_to(layout.root) else bases[path]).as_posix(): content
        for path, content in contents.items()
    }
    for file, path in _files_below(layout.base, files, skipped=[]):
        content, key = content_of(path), (PurePosixPath(layout.folder) / file).as_posix()
        if sent.setdefault(key, content) != content:
            fix = "rename one of them"
            raise BadInput("two files would have the same path", about=f"{key}: {path}", fix=fix)
    _check_sizes(_sizes(sent), about=f"trainer {layout.program}", most=(DISK_FILES, DISK_BYTES))
    return sent, layout


def check_size(carried: Sources, *, about: str) -> Sources:
    """Return the sources if a ConfigMap can carry them; raise BadInput if not."""
    _check_sizes(_sizes(carried), about=about, most=(MAX_FILES, CONFIG_MAP_BYTES))
    return carried


def fits(carried: Sources) -> bool:
    """Check whether a ConfigMap can carry the sources."""
    return len(carried) <= MAX_FILES and sum(_sizes(carried).values()) <= CONFIG_MAP_BYTES


def _sizes(carried: Sources) -> dict[str, int]:
    return {name: len(text.encode() if isinstance(text, str) else text) for name, text in carried.items()}


def _check_sizes(sizes: Mapping[str, int], *, about: str, most: tuple[int, int]) -> None:
    fix = (
        'put data on a volume: `volume.upload("data")`, and `volumes={"/data": volume}` for the job; '
        'the project too, `volume.upload(".")`, and launch volume://NAME/train.py; or all of it into an image'
    )
    if len(sizes) > most[0] or sum(sizes.values()) > most[1]:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        carrier = "a ConfigMap carries" if most[0] == MAX_FILES else "what is copied to local nodes is"
        raise BadInput(
            f"the trainer and its files are {len(sizes):,} files of {sum(sizes.values()):,} bytes, and "
            f"{carrier} at most {most[0]:,} of {most[1]:,}; the largest: "
            + ", ".join(f"{name} {sizes[name]:,}" for name in largest),
            about=about,
            fix=fix,
        )
    for path in sizes:  # what Kubernetes refuses in a ConfigMap's items
        if path.startswith("..") or _has_surrogates(path):
            what = "the name of a file in a ConfigMap is UTF-8, and does not begin with two dots"
            raise BadInput(what, about=f"{about}: {path!r}", fix=f"rename it, or {fix}")


def data_of(carried: Sources) -> Object:
    """Build the ``data`` and ``binaryData`` of the ConfigMap that carries them."""
    keys = _keys(carried)
    text = {keys[path]: content for path, content in carried.items() if isinstance(content, str)}
    binary = {
        keys[path]: base64.b64encode(content).decode()
        for path, content in carried.items()
        if isinstance(content, bytes)
    }
    return {"data": text} | ({"binaryData": binary} if binary else {})


def volume_of(carried: Sources, *, name: str, modes: Mapping[str, int], below: str = "") -> Object:
    """Build the pods' volume with the files, or those below a path, from the ConfigMap of that name."""
    items = [
        {"key": key, "path": path} | ({"mode": modes[path]} if path in modes else {})
        for path, key in _keys(carried).items()
        if not below or PurePosixPath(path).is_relative_to(below)
    ]
    is_complete = (
        len(items) == len(carried) and not modes and all(item["key"] == item["path"] for item in items)
    )
    return {"name": "trainer", "configMap": {"name": name} | ({} if is_complete else {"items": items})}


def _keys(carried: Sources) -> dict[str, str]:
    """Give each path a key of the ConfigMap: dots for its slashes, or else a number and a similar text.

    Keys have few characters and no slashes. None is given twice: only those with a number have three dots.
    """
    return {
        path: path.replace("/", "..")
        if len(path) < 120 and all(_PLAIN.fullmatch(part) and ".." not in part for part in path.split("/"))
        else f"{number}...{re.sub(r'[^-_a-zA-Z0-9]+', '.', path)[-100:].strip('.')}"
        for number, path in enumerate(carried)
    }


def normalise_files(folder: Path, files: Iterable[str | Path]) -> list[str]:
    """Normalise the files and folders that a program reads: paths below a folder."""
    if isinstance(files, str | Path):
        raise BadInput("files is a list", about=f"files={str(files)!r}", fix=f"`files=[{str(files)!r}]`")
    names_below = list[str]()
    for file in files:
        path = folder / Path(file).expanduser()
        places = (Path(os.path.normpath(path)), path.parent.resolve() / path.name)  # by links or without
        place = next((place for place in places if place.is_relative_to(folder) and place != folder), None)
        if place is None or not place.exists():
            what = "there is no such file or folder beside the trainer"
            fix = "name files and folders below that one, which is the root of `module=`; or use a volume"
            raise BadInput(what, about=f"{file}, looked for in {folder}", fix=fix)
        name = place.relative_to(folder).as_posix()
        if overlaps := [path for path in names_below if _overlap(name, path)]:
            raise BadInput(
                "a file is named twice",
                about=f"{name} and {overlaps[0]}",
                fix="name a folder, or what is in it",
            )
        names_below.append(name)
    return names_below


def modes(folder: Path, files: Iterable[str]) -> dict[str, int]:
    """Read the permissions of files that are not 0644; in pods every user may read them, as on a volume.

    What a ConfigMap cannot carry is logged: empty folders, and links that lead nowhere.
    """
    skipped: list[str] = []
    statuses = {name: path.stat() for name, path in _files_below(folder, files, skipped=skipped)}
    sizes = {name: status.st_size for name, status in statuses.items()}
    _check_sizes(sizes, about=f"files of {folder}", most=(DISK_FILES, DISK_BYTES))
    if skipped:
        log.warning("a ConfigMap carries only files; left out: %s", "; ".join(skipped))
    permissions = {name: status.st_mode & 0o777 | 0o644 for name, status in statuses.items()}
    return {name: mode for name, mode in permissions.items() if mode != 0o644}


def _files_below(folder: Path, names: Iterable[str], *, skipped: list[str]) -> Iterator[tuple[str, Path]]:
    """Walk files and folders: yield the path in the pods and here of each file; links are followed."""
    for name in names:
        parents: set[PurePosixPath] = set()
        folders = []
        for entry in walk(folder / name, skipped=skipped, links=False):
            path = PurePosixPath(name, entry.path)
            if "__pycache__" in path.parts:
                continue
            if entry.source.is_dir():
                folders.append(path)
            else:
                parents.update(path.parents)
                yield path.as_posix(), entry.source
        skipped += [f"{str(path)!r} is an empty folder" for path in folders if path not in parents]


def _overlap(one: str, other: str) -> bool:
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)


def _module_files(
    module: str,
    places: Sequence[Path],
    shared_modules: Collection[Path],
    packages: set[Path],
    *,
    needed: bool,
    guessed: Collection[Path],
) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the files of an imported module: path, searched folder, and whether Python reads it at once.

    As Python does: the first of a file and a package wins, an installed module before a folder that is none,
    and before what lies in a folder that is only guessed: examples of a repository run with its release.
    """
    top, *rest = module.split(".")
    for root in places:
        file, package = root / f"{top}.py", root / top
        is_there = file.is_file() or (package / "__init__.py").is_file()
        if is_there and root in guessed and is_installed(top, places):
            return
        if (package / "__init__.py").is_file():
            yield from _package(package, rest, root, packages, needed=needed)
            return
        if file.is_file():
            yield file, root, needed
            return
    for file in (path for path in shared_modules if path.stem == top):
        yield file, file.parent, needed
        return
    folders = [root for root in places if (root / top).is_dir()]
    if folders and not is_installed(top, places):
        yield from _package(folders[0] / top, rest, folders[0], packages, needed=needed)


def _package(
    package: Path, rest: Sequence[str], root: Path, packages: set[Path], *, needed: bool
) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the files of a package, once, and those of its modules that are imported."""
    for path in () if package in packages else files_of(package):
        yield path, root, False
    packages.add(package)
    for number in range(len(rest) + 1 if needed else 0):
        place = package.joinpath(*rest[:number])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file() and place != package or file.name == "__init__.py" and file.is_file():
                yield file, root, True


def _read_beside(content: str | bytes, path: Path, base: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the files beside a source to which it refers."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = parse(content)
        files = [path.parent / text for text in texts_of(tree) if ".." not in text]
        for file in (*files, *literal_paths(tree, path)):
            if file.is_relative_to(path.parent) and file.suffix and len(str(file)) < 4096 and file.is_file():
                yield file, base, False


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a source that may be names of files or modules."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text and len(text) < LONGEST_NAME and "\n" not in text and "\0" not in text:
            yield text


def _dynamic_imports(content: str | bytes, settings: str, places: Sequence[Path]) -> Iterator[str]:
    """Yield the modules beside a program that its texts or settings name, if it imports computed names."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = parse(content)
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        words = {*texts_of(tree), *re.findall(r"[\w.]+", settings)}
        for text in sorted(words) if any(call.endswith(_DYNAMIC) for call in calls) else ():
            module = text.partition(":")[0]
            parts = module.split(".")
            for place in places if all(map(str.isidentifier, parts)) else ():
                top, path = place / parts[0], place.joinpath(*parts)
                files = (top.with_suffix(".py"), top / "__init__.py", path.with_suffix(".py"))
                if any(file.is_file() for file in (*files, path.parent.with_suffix(".py"))):
                    yield module


def imports(source: str) -> set[str]:
    """List the top-level modules that a program imports."""
    return {module.partition(".")[0] for module in _imported(parse(source), ())}


def required(source: str | bytes) -> set[str]:
    """List the top-level modules that a program imports when it starts, and not within `try`."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):
        return set()
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {module.partition(".")[0] for module in _imported(tree, ())}


def _modules(content: str | bytes, name: PurePosixPath, *, about: str, needed: bool) -> list[str]:
    """List the modules that a source imports; of one that is not needed and no Python, none."""
    try:
        source = content.encode() if isinstance(content, str) else content  # bytes may declare an encoding
        return list(_imported(parse(source, filename=about), name.parent.parts))
    except (SyntaxError, ValueError) as error:  # the latter for null bytes, before Python 3.12
        if not needed:
            return []
        line = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
        place = f", line {error.lineno}: {line}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        what = f"the trainer is not valid Python: {what}"
        raise BadInput(what, about=f"trainer {about}{place}", fix="correct that line") from error


def _imported(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """Yield the imports of a source of a package, by absolute dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("import_module", "__import__"))
            and node.args
            and (module := _package_of(node.args[0]))
        ):
            yield module


def _package_of(node: ast.expr) -> str:
    """Read the package of a module whose name is computed: ``"models." + name``, ``f"models.{name}"``."""
    is_literal = isinstance(node, ast.Constant)
    while isinstance(node, ast.BinOp | ast.Call | ast.Attribute | ast.JoinedStr):
        match node:
            case ast.BinOp(left=inner) | ast.Call(func=inner) | ast.Attribute(value=inner):
                node = inner
            case ast.JoinedStr(values=[first, *_]):
                node = first
            case _:
                return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    text = text.partition("%")[0].partition("{")[0]
    return (text if is_literal else text.rpartition(".")[0]).strip(".")


def content_of(path: Path) -> str | bytes:
    """Read a file: text if it is UTF-8, which a person can read in the ConfigMap, or else bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "name files that you can read"
        raise BadInput(f"a file cannot be read: {error.strerror}", about=str(path), fix=fix) from error
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def flags(args: Mapping[str, Any] | Sequence[object], programs: Iterable[str | bytes] = ()) -> list[str]:
    """Convert a trainer's flags to command-line words, as its sources spell them.

    Example:
        >>> flags({"epochs": 3, "log_every": 5, "amp": True, "resume": None})
        ['--epochs=3', '--log_every=5', '--amp']
    """
    if not isinstance(args, Mapping | Sequence) or isinstance(args, str | bytes):
        what = "a trainer's arguments are a dict or a list"
        raise BadInput(what, about=f"args={args!r}", fix='`args={"epochs": 3}`')
    words = command_line(args, programs)
    if bad := [word for word in words if "\0" in word or _has_surrogates(word)]:
        what = "an argument is UTF-8 text without null characters"
        fix = "remove the null or invalid characters, or pass the value in a file (`files=`)"
        raise BadInput(what, about=f"args: {bad[0]!r}", fix=fix)
    return words


def escape_dollars(words: Iterable[str]) -> list[str]:
    """Escape words of a container's command or arguments, in which Kubernetes expands ``$(NAME)``.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return [word.replace("$", "$$") for word in words]


def _has_surrogates(text: str) -> bool:
    """Check for lone surrogates, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)
