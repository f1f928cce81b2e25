"""A function of a notebook as a program: its source at its own line numbers, and a call with its arguments.

Only the source and the modules beside the notebook are sent, so the function imports what it uses and gets
the rest as arguments, as in Kubeflow's `CustomTrainer`. The program has the function at the
lines that it has in its cell or file, so a traceback names the learner's own lines.
https://sdk.kubeflow.org/en/latest/train/index.html
"""

import ast
import builtins
import contextlib
import inspect
import os
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.sources import Sources, sources
from kitlib.jobs.syntax import parse

# IPython adds the latter to the builtins of a kernel.
OWN = {*dir(builtins), "__file__", "__builtins__"} - {"display", "get_ipython", "__IPYTHON__", "_"}
MAGIC = "get_ipython"  # what a magic and a shell command become
SHADOWED = ("torch", "torchvision", "numpy")
ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}


def program(function: Callable[..., object], args: Mapping[str, Any] | Sequence[object] | None) -> str:
    """Write the program that defines a function and calls it.

    Example:
        >>> def train(epochs):
        ...     print(epochs)
        >>> print(program(train, {"epochs": 2}).strip())
        def train(epochs):
            print(epochs)
        <BLANKLINE>
        if __name__ == "__main__":
            train(**{'epochs': 2})
    """
    about = f"function {getattr(function, '__name__', function)!s}"
    values = arguments(function, args)
    if not _is_literal(values):
        what = "a function's arguments are numbers, texts, lists or dicts"
        raise BadInput(
            what, about=f"{about}, args={values!r}", fix="create other objects inside the function"
        )
    lines, first = source_of(function)
    head = "\n" * (first - 1)
    if lines[0][0].isspace():  # defined inside something: indented as it is, and texts in it stay the same
        head = "\n" * max(0, first - 2) + "if True:\n"
    source = head + "".join(lines).rstrip() + "\n"
    _check_names(source, function, about=about)
    return f'{source}\nif __name__ == "__main__":\n    {function.__name__}(**{values!r})\n'


def carried(function: Callable[..., object], args: Mapping[str, Any] | Sequence[object] | None) -> Sources:
    """Read a function's sources: its program, and the modules beside the notebook that it imports."""
    text = program(function, args)
    path = Path.cwd() / f"{function.__name__}.py"
    return sources(path, generated={path: text})


def arguments(
    function: Callable[..., object], args: Mapping[str, Any] | Sequence[object] | None
) -> dict[str, object]:
    """Check a function's arguments: a dict of those that it takes."""
    fix = '`args={"epochs": 3}`'
    if args and not isinstance(args, Mapping):
        raise BadInput("a function's arguments are a dict", about=f"args={args!r}", fix=fix)
    values: dict[str, object] = dict(args) if isinstance(args, Mapping) else {}
    try:
        inspect.signature(function).bind(**values)
    except TypeError as error:
        about = f"{function.__name__}{inspect.signature(function)}, args={values!r}"
        raise BadInput(f"the function has other arguments: {error}", about=about, fix=fix) from error
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        what = "calling this function runs nothing: it is async, or a generator"
        raise BadInput(
            what, about=f"function {function.__name__}", fix="call it in a plain function, and send that"
        )
    return values


def source_of(function: Callable[..., object]) -> tuple[list[str], int]:
    """Read a function's lines, and the number of the first in its cell or file."""
    fix = "define it with def in a cell, without a %%magic, or in a file"
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise BadInput("this function cannot be sent", about=repr(function), fix=fix)
    if function.__name__ in sys.stdlib_module_names or function.__name__ in SHADOWED:
        what = f"a program of this name hides the module {function.__name__} from all that import it"
        raise BadInput(what, about=f"function {function.__name__}", fix="give the function another name")
    try:
        return inspect.getsourcelines(function)
    except OSError as error:
        what = "the source of this function is not available"
        raise BadInput(what, about=f"function {function.__name__}", fix=fix) from error


def _is_literal(value: object) -> bool:
    """Check whether the repr of a value is a literal of the same value."""
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Set the variables that torchrun sets, for a world of one rank in this process, where a debugger works.

    Example:
        >>> with single_process():
        ...     train(epochs=1)
    """
    before = {name: os.environ.get(name) for name in [*ALONE, "MASTER_PORT"]}
    os.environ.update(ALONE | {"MASTER_PORT": "0"})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_names(source: str, function: Callable[..., object], *, about: str) -> None:
    """Raise BadInput for names that the function uses and nothing in it defines."""
    try:
        top = symtable.symtable(source, about, "exec")
    except SyntaxError as error:  # nonlocal, of a function that another one encloses
        fix = "define it at the top of a cell"
        raise BadInput(f"the function is not self-contained: {error.msg}", about=about, fix=fix) from error
    symbols = [(table, symbol) for table in _tables(top) for symbol in table.get_symbols()]
    defined = {symbol.get_name() for table, symbol in symbols if table is top and _is_bound(symbol)}
    first = {symbol.get_name() for table, symbol in symbols if table is top and symbol.is_referenced()}
    used = {symbol.get_name() for _, symbol in symbols if symbol.is_referenced() and symbol.is_global()}
    used |= _augmented(parse(source))
    inner = inspect.unwrap(function)
    used |= {"__class__"} & set(inner.__code__.co_freevars)  # of super()
    if outside := sorted((used | first) - defined - OWN):
        known = inspect.getclosurevars(inner)
        values = {**inner.__globals__, **known.nonlocals}
        fixes = dict.fromkeys(_fix(name, values.get(name), before=name in first) for name in outside)
        what = f"the function uses {', '.join(outside)} from outside, which is not sent with it"
        raise BadInput(what, about=about, fix="; ".join(fixes))


def _fix(name: str, value: object, *, before: bool) -> str:
    """Suggest how a function can do without a name of the notebook, by the name's value."""
    if name == MAGIC:
        return "leave out magics (%…) and shell commands (!…): only a notebook has them"
    if name == "display":
        return "print what display would show"
    if name == "__class__":
        return "call no super() outside of a class"
    if before:
        return f"leave {name} out of decorators, defaults and annotations: they run before the function"
    if isinstance(value, ModuleType):
        module, _, last = value.__name__.rpartition(".")
        plain = f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        return f"inside the function: {f'from {module} import {name}' if module and last == name else plain}"
    if isinstance(value, type | FunctionType):
        if (
            value.__module__ not in ("__main__", "builtins")
            and getattr(sys.modules.get(value.__module__), name, None) is value
        ):
            return f"inside the function: from {value.__module__} import {name}"
        return f"define {name} inside the function, or in a module beside the notebook that it imports"
    return f'pass {name} as an argument: `args={{"{name}": …}}`'


def _augmented(tree: ast.Module) -> set[str]:
    """List the global names that are only targets of augmented assignments."""
    nodes = list(ast.walk(tree))
    augmented = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    assigned = {name.id for name in names if name not in augmented}
    return {name.id for name in names if name in augmented} & declared - assigned


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
