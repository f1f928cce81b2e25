"""The layout of a project: the trainer, its root, and the folders in which Python looks for modules.

The root is what the caller says, or else the folder with ``pyproject.toml`` or ``.git`` above the trainer, or
what the script itself puts on ``sys.path``. In the pods the folders are the same below `FOLDER`. What is
carried of them is in `sources`.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs.syntax import parse

FOLDER = "/trainyard/trainer"
MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_NO_PROGRAMS = (".sh", ".yaml", ".yml", ".toml", ".json")
_JOINS = ("Path", "str", "fspath", "join", "joinpath")
_PATH_NAMES = (*_JOINS, "dirname", "abspath", "realpath", "normpath", "resolve", "absolute")
_SEARCHES = ("path.insert", "path.append", "path.extend", "addsitedir")


@dataclass(frozen=True)
class Layout:
    """The layout of a project.

    Attributes:
        program: The trainer.
        root: The folder that becomes `FOLDER` in the pods.
        searched: Folders in which Python looks for modules, after the trainer's own.
        shown: Those of them in the pods' ``PYTHONPATH``: the script does not add them itself.
        module: The module as which it is started; empty for a script.
        is_root_named: Whether the caller has named the root.
    """

    program: Path
    root: Path
    searched: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()
    module: str = ""
    is_root_named: bool = False

    @property
    def name(self) -> str:
        """The trainer's path below the root."""
        return self.program.relative_to(self.root).as_posix()

    @property
    def base(self) -> Path:
        """The folder below which files are named: the trainer's; of ``module=`` the root, where it starts."""
        return self.root if self.module and self.is_root_named else self.program.parent

    @property
    def folder(self) -> str:
        """That folder, below the root."""
        return self.base.relative_to(self.root).as_posix()

    @property
    def python_path(self) -> str:
        """The variable by which pods find modules."""
        places = [os.path.normpath(f"{FOLDER}/{place.relative_to(self.root)}") for place in self.shown]
        return ":".join(places)

    @property
    def guessed(self) -> tuple[Path, ...]:
        """The folders above the trainer that were not named: Python does not search them on this machine."""
        if self.is_root_named or self.module:
            return ()
        named = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
        return tuple(place for place in self.shown if place not in named)

    def with_used(self, used: Iterable[Path]) -> Self:
        """Keep those folders alone in which something was, below one root."""
        searched = [place for place in self.searched if place in used]
        is_fixed = self.is_root_named or bool(self.module)
        shown = tuple(place for place in self.shown if place in searched or is_fixed and place == self.root)
        own = self.root if is_fixed else self.program.parent
        root = Path(os.path.commonpath([own, self.program.parent, *searched, *shown]))
        return replace(self, root=root, searched=tuple(searched), shown=shown)


def read(
    trainer: str | os.PathLike[str] | None, root: str | os.PathLike[str] | None, module: str | None
) -> Layout:
    """Find the layout of a trainer: a path, or a module of a project."""
    base = None if root is None else Path(root).expanduser().resolve()
    if base is not None and not base.is_dir():
        raise BadInput("there is no such folder", about=f"root={str(root)!r}", fix='`root="."` is this one')
    if module is not None:
        return _of_module(trainer, base, module)
    if trainer is None:
        fix = '`kit.launch("train.py")`, or `module="engine.train"`'
        raise BadInput("no trainer is named", about="trainer=None, module=None", fix=fix)
    if Path(trainer).suffix in _NO_PROGRAMS or (" " in str(trainer) and not Path(trainer).exists()):
        fix = '`kit.launch("train.py", args=["--epochs=3"])`; torchrun starts it, or `launcher="python"`'
        raise BadInput("a trainer is a Python program, not a command", about=f"trainer {trainer}", fix=fix)
    program = config.find(trainer)
    if base is not None and not program.is_relative_to(base):
        about = f"{program}, root={base}"
        raise BadInput("the trainer is not below the root", about=about, fix='`root=".."`')
    tree = _parse(program)
    entries = dict(_sys_path_entries(tree, program))
    added = tuple(place for place, is_of_file in entries.items() if place != program.parent and is_of_file)
    top = base or _project_root(program.parent)
    relative = [place for place, is_of_file in entries.items() if not is_of_file]  # to another folder in pods
    projects = dict.fromkeys([*relative, *([top, top / "src"] if top else [])])
    shown = tuple(place for place in projects if place != program.parent and place not in added)
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        above = base or top or _outside_package(program.parent)
        above = _outside_package(program.parent) if (program.parent / "__init__.py").exists() else above
        if above != program.parent:
            name = ".".join(program.relative_to(above).with_suffix("").parts)
            return Layout(program, above, (above, *added), (above,), name)
    return Layout(program, base or program.parent, (*added, *shown), shown, is_root_named=base is not None)


def _of_module(trainer: object, base: Path | None, module: str) -> Layout:
    if trainer is not None or not all(part.isidentifier() for part in module.split(".")):
        about = f"module={module!r}" + ("" if trainer is None else f", trainer {trainer}")
        raise BadInput("a module is not a trainer's path", about=about, fix='`module="engine.train"`')
    parts = Path(*module.split("."))
    tops = (
        [base] if base else list(dict.fromkeys([Path.cwd().resolve(), _project_root(Path.cwd().resolve())]))
    )
    places = [place for top in tops if top for place in (top, top / "src")]
    for place in places:
        for file in (place / parts.with_suffix(".py"), place / parts / "__main__.py"):
            if file.is_file():
                return Layout(file, place, (place,), (place,), module, is_root_named=True)
    searched = ", ".join(map(str, places))
    fix = "name the folder that it is in: `root=…`"
    raise BadInput("there is no such module", about=f"module={module!r}, looked for in {searched}", fix=fix)


def is_installed(top: str, beside: Iterable[Path]) -> bool:
    """Check whether a module belongs to the environment, and not to the project."""
    if top in sys.stdlib_module_names:
        return True
    directories = {*beside, Path.cwd()}
    entries = [entry for entry in sys.path if entry and Path(entry).resolve() not in directories]
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.machinery.PathFinder.find_spec(top, entries) or importlib.util.find_spec(top)
        origin = spec.origin if spec else None
        return bool(origin) and not any(Path(str(origin)).is_relative_to(place) for place in beside)
    return False


def files_of(folder: Path) -> list[Path]:
    """List a package's files, data as well: in a repository those that git does not ignore."""
    git = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard", "--", "."]
    with contextlib.suppress(OSError):
        listed = subprocess.run(git, capture_output=True, check=False)
        if listed.returncode == 0:
            paths = (folder / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
            return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
    )


@cache
def _homes() -> tuple[Path, ...]:
    return (Path(os.environ.get("HOME", "/")), Path("/"), Path("/home"), Path("/tmp"))


def _project_root(folder: Path) -> Path | None:
    """Find the nearest folder above, or this one, that is a project's."""
    return next(
        (
            place
            for place in (folder, *folder.parents)
            if place not in _homes() and any((place / name).exists() for name in MARKERS)
        ),
        None,
    )


def _outside_package(folder: Path) -> Path:
    """Find the parent folder of the package to which a folder belongs."""
    while (folder / "__init__.py").exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _parse(program: Path) -> ast.Module:
    with contextlib.suppress(SyntaxError, ValueError, OSError):  # `sources` says what is wrong
        return parse(program.read_bytes())
    return ast.Module([], [])


def _sys_path_entries(tree: ast.Module, program: Path, *, beside: bool = True) -> Iterator[tuple[Path, bool]]:
    """Yield the folders that a script puts on ``sys.path``, and whether it computes them from ``__file__``.

    Args:
        tree: Of the script.
        program: Its file.
        beside: Include what modules beside it put there, such as ``_init_paths``.
    """
    nodes = list(ast.walk(tree))
    values = _values(nodes, program)
    helpers = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(map(_is_search, ast.walk(node)))
    ]
    for node in nodes:
        if isinstance(node, ast.Import) and beside:
            for file in (program.with_name(f"{item.name}.py") for item in node.names):
                yield from _sys_path_entries(_parse(file), file, beside=False)
        values_added: list[ast.expr] = []
        if isinstance(node, ast.AugAssign) and _is_search(node):
            values_added = [node.value]
        elif isinstance(node, ast.Call) and (_is_search(node) or ast.unparse(node.func) in helpers):
            values_added = node.args[-1:]
        for value in values_added:
            for part in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                with contextlib.suppress(ValueError, IndexError):
                    path = _evaluate(part, values, program.parent)
                    if _absolute(path).is_dir() and _absolute(path) not in _homes():
                        yield _absolute(path), path.is_absolute()


def _is_search(node: ast.AST) -> bool:
    """Check whether a node adds to ``sys.path``."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) == "sys.path"
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_SEARCHES)


def _values(nodes: Iterable[ast.AST], program: Path) -> dict[str, Path]:
    values = {"__file__": program}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError, IndexError):
                values.setdefault(node.targets[0].id, _evaluate(node.value, values, program.parent))
    return values


def literal_paths(tree: ast.Module, program: Path, *, anchored: bool = False) -> Iterator[Path]:
    """Yield the paths that a source computes from literals or ``__file__``; ``anchored``: the latter."""
    nodes = list(ast.walk(tree))
    values = _values(nodes, program)
    for node in nodes:
        if isinstance(node, ast.Call | ast.BinOp):
            with contextlib.suppress(ValueError, IndexError):
                path = _evaluate(node, values, program.parent)
                if path.is_absolute() or not anchored:
                    yield Path(os.path.normpath(program.parent / path))


def _evaluate(node: ast.expr, values: dict[str, Path], folder: Path) -> Path:
    """Compute a path from ``__file__`` and literals; ValueError for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return Path(text) if text else Path()
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _evaluate(left, values, folder) / _evaluate(right, values, folder)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return Path(f"{_evaluate(left, values, folder)}{_evaluate(right, values, folder)}")
        case ast.JoinedStr(values=parts):
            return Path("".join(str(_evaluate(part, values, folder)) for part in parts))
        case ast.FormattedValue(value=value):
            return _evaluate(value, values, folder)
        case ast.Attribute(value=value, attr="parent"):
            return _evaluate(value, values, folder).parent
        case ast.Subscript(
            value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(up))
        ):
            return _evaluate(value, values, folder).parents[up]
        case ast.Attribute(attr="pardir"):
            return Path("..")
        case ast.Call(func=function, args=arguments):
            name = ast.unparse(function).rpartition(".")[2]
            if name in ("getcwd", "cwd"):
                return Path.cwd()
            if name == "with_name" and isinstance(function, ast.Attribute):
                return _evaluate(function.value, values, folder).parent / _evaluate(
                    arguments[0], values, folder
                )
            if name not in _PATH_NAMES:
                raise ValueError(name)
            if isinstance(function, ast.Attribute) and name in ("resolve", "absolute", "joinpath"):
                arguments = [function.value, *arguments]
            path = Path(*(_evaluate(argument, values, folder) for argument in arguments))
            if name == "dirname":
                return path.parent
            return path if name in _JOINS else _absolute(path)
    raise ValueError(ast.unparse(node))


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))
