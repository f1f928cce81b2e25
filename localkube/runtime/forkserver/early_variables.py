"""Find a program that sets variables before it imports torch, which a fork has imported already.

``os.environ["OMP_NUM_THREADS"] = "1"`` above ``import torch`` has an effect on a new interpreter alone, so
such a program starts cold. Its source is parsed, not run, and so are its own modules that it imports before
torch. When in doubt it starts cold, which is slower but correct. Variables that are read when they are used
(``CUDA_VISIBLE_DEVICES``, ``NCCL_DEBUG``, ``MASTER_ADDR``) do not matter.
"""

import ast
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from localkube.runtime.forkserver.command import is_read_at_import

SETTERS = {"environ", "environb", "putenv", "load_dotenv"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
MAX_BYTES = 1 << 20
IMPORT = re.compile(rb"^(?:import|from) torch\b", re.MULTILINE)


def sets_early(source: bytes, directories: Sequence[str]) -> bool:
    """Check whether a program may set a variable that torch, or a library of torch's, reads at its import.

    Args:
        source: The program's.
        directories: The directories that are searched for its own modules.

    Example:
        >>> sets_early(b'import os; os.environ["OMP_NUM_THREADS"] = "1"; import torch', [])
        True
    """
    return _Reader(directories).read(source) is None


class _Reader:
    """Reads sources in the order in which their code runs, down to the first import of torch."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories, self._seen = directories, set[str]()
        self._names, self._sets = False, False

    def read(self, source: bytes) -> bool | None:
        """Read one source: True when it imports torch, None when it sets a variable before that."""
        try:
            statements = _statements(source)
        except (SyntaxError, ValueError):  # the interpreter reports it better
            return True
        for statement in statements:
            for node in _in_order(statement):
                self._look_at(node)
                if self._names and self._sets:
                    return None
            for module in _imported(statement):
                if module.partition(".")[0] == "torch":
                    return True
                if (values := self._read_module(module)) is not False:
                    return values
        return False

    def _read_module(self, name: str) -> bool | None:
        """Read a module of the program's own, and the packages that it is in."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            path = find_module(".".join(parts[:length]), self._directories)
            if path is None or path in self._seen:
                continue
            self._seen.add(path)
            with open(path, "rb") as file:
                values = self.read(file.read(MAX_BYTES))
            if values is not False:
                return values
        return False

    def _look_at(self, node: ast.AST) -> None:
        """Record a call that sets variables, and a name whose value matters."""
        identifiers = {getattr(node, field, None) for field in ("id", "attr", "name")}
        self._sets = self._sets or bool(SETTERS & {name for name in identifiers if isinstance(name, str)})
        name = node.arg if isinstance(node, ast.keyword) else getattr(node, "value", None)
        if isinstance(node, (ast.keyword, ast.Constant)) and isinstance(name, str | bytes):
            self._names = self._names or is_read_at_import(os.fsdecode(name))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_environ(node.value):
            self._names = self._names or not isinstance(node.slice, ast.Constant)
        if isinstance(node, ast.Call) and not all(map(_is_literal, node.args[:1])):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            of_environ = isinstance(function, ast.Attribute) and _is_environ(function.value)
            is_setter = name == "putenv" or (of_environ and name in ("update", "setdefault"))
            self._names = self._names or is_setter
        if getattr(node, "id", getattr(node, "attr", "")) == "load_dotenv":
            self._names = True


def _statements(source: bytes) -> list[ast.stmt]:
    """Parse a source: only down to an import of torch at its left margin, if that part is complete."""
    if (torch_import := IMPORT.search(source)) is not None:
        with suppress(SyntaxError, ValueError):
            return ast.parse(source[: torch_import.start()] + b"import torch").body
    return ast.parse(source).body


def _in_order(statement: ast.AST) -> Iterator[ast.AST]:
    yield statement
    for child in ast.iter_child_nodes(statement):
        yield from _in_order(child)


def _imported(statement: ast.AST) -> Iterator[str]:
    """List the modules that a statement imports when it runs, not those of functions that it defines."""
    if isinstance(statement, FUNCTIONS):
        return
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield statement.module
        yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
    for child in ast.iter_child_nodes(statement):
        yield from _imported(child)


def _is_environ(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in ("environ", "environb")


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant | ast.Dict) and None not in getattr(node, "keys", ())


def find_module(name: str, directories: Sequence[str]) -> str | None:
    for directory in directories:
        stem = os.path.join(directory, *name.split("."))
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None
