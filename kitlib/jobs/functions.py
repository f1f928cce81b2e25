"""A function of a notebook as a program: its source at its own line numbers, and a call with its arguments.

Nothing of the notebook goes along but the source, so the function imports what it uses, and gets the rest as
arguments, as in Kubeflow's `CustomTrainer`. The program has the function at the lines that it has in its cell
or file, so a traceback names the learner's own lines.
https://sdk.kubeflow.org/en/latest/train/index.html
"""

import ast
import builtins
import contextlib
import inspect
import os
import symtable
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from kitlib.errors import BadInput

OWN = {*dir(builtins), "__name__", "__file__"}
ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}


def program(function: Callable[..., object], args: Mapping[str, Any] | Sequence[object] | None) -> str:
    """Write the program that defines a function and calls it.

    Args:
        function: Defined with ``def``, in a cell or a file.
        args: Its arguments by name: numbers, texts, lists, dicts.

    Raises:
        BadInput: It is no such function, uses names from outside, or an argument has no literal.

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
    given = arguments(function, args)
    if not _is_literal(given):
        what = "an argument of a function that is sent is a number, a text, a list or a dict"
        raise BadInput(what, about=f"{about}, args={given!r}", fix="create other objects inside the function")
    lines, first = source_of(function)
    head = "\n" * (first - 1)
    if lines[0][0].isspace():  # defined inside something: indented as it is, and texts in it stay the same
        head = "\n" * max(0, first - 2) + "if True:\n"
    source = head + "".join(lines).rstrip() + "\n"
    _check_names(source, about=about)
    return f'{source}\nif __name__ == "__main__":\n    {function.__name__}(**{given!r})\n'


def arguments(
    function: Callable[..., object], args: Mapping[str, Any] | Sequence[object] | None
) -> dict[str, object]:
    """Check a function's arguments, by name.

    Raises:
        BadInput: They are no dict, or the function takes others.
    """
    fix = 'args={"epochs": 3}'
    if args and not isinstance(args, Mapping):
        raise BadInput("a function's arguments are a dict", about=f"args={args!r}", fix=fix)
    given: dict[str, object] = dict(args) if isinstance(args, Mapping) else {}
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        about = f"{function.__name__}{inspect.signature(function)}, args={given!r}"
        raise BadInput(f"the function has other arguments: {error}", about=about, fix=fix) from error
    return given


def source_of(function: Callable[..., object]) -> tuple[list[str], int]:
    """Read a function's lines, and the number of the first in its cell or file.

    Raises:
        BadInput: It is no function that was defined with ``def``, or has no source.
    """
    fix = "define it with def in a cell or in a file"
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise BadInput("this is no function that can be sent", about=repr(function), fix=fix)
    try:
        return inspect.getsourcelines(function)
    except OSError as error:
        what = "the source of this function is not known"
        raise BadInput(what, about=f"function {function.__name__}", fix=fix) from error


def _is_literal(value: object) -> bool:
    """Tell whether the repr of a value is a literal of the same value."""
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Set torchrun's variables of a world of one rank, for a function that is called in this process."""
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


def _check_names(source: str, *, about: str) -> None:
    """Raise BadInput for names that the function uses and nothing in it defines."""
    top = symtable.symtable(source, about, "exec")
    defined = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    used = {
        each.get_name()
        for table in _tables(top)
        for each in table.get_symbols()
        if each.is_referenced() and (table is top or each.is_global())
    }
    if outside := sorted(used - defined - OWN):
        raise BadInput(
            f"the function uses {', '.join(outside)} from outside, which is not sent with it",
            about=about,
            fix="import inside the function, and pass values as arguments: args={…}",
        )


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for each in table.get_children():
        yield from _tables(each)
