"""Checked arguments: Shift-Tab shows all of them, and an error names the nearest one.

Python's own TypeError names neither the existing arguments nor the nearest one, and a function that passes
its keywords on shows none of them.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, overload

from kitlib.errors import BadInput

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
NOTHING: Mapping[str, object] = MappingProxyType({})
_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Names in other libraries whose spelling is not near.
_SYNONYMS = {
    "replicas": ("nodes", "workers"),
    "num_workers": ("nodes", "workers"),
    "nprocs": ("processes_per_node",),
    "nproc": ("processes_per_node",),
    "parameters": ("args",),
    "environment": ("env",),
    "ram": ("memory",),
    "force": ("replace", "recreate"),
    "overwrite": ("replace", "recreate"),
    "provider_name": ("provider",),
}


@overload
def checked(function: Function) -> Function: ...


@overload
def checked(*, options: Callable[..., object] | Mapping[str, object]) -> Callable[[Function], Function]: ...


def checked(
    function: Function | None = None, *, options: Callable[..., object] | Mapping[str, object] = NOTHING
) -> Function | Callable[[Function], Function]:
    """Raise BadInput, which names the nearest argument, for a call with an unknown one.

    Args:
        function: The function.
        options: The function to which its ``**`` argument is passed, or its names: the signature has
            these in its place.

    Example:
        >>> launch("train.py", node=4)
        BadInput: launch has no argument "node"
          about: launch(node=4)
          try:   nodes=4
    """
    if function is None:
        return functools.partial(checked, options=options)
    wrapped = function
    signature = _expanded(inspect.signature(wrapped), options)

    @functools.wraps(wrapped)
    def call(*args: object, **keywords: object) -> Any:
        try:
            signature.bind(*args, **keywords)
        except TypeError as error:
            name = type(args[0]).__name__ if wrapped.__name__ == "__init__" else wrapped.__qualname__
            raise _explain(signature, name, keywords, str(error)) from None
        return wrapped(*args, **keywords)

    vars(call)["__signature__"] = signature  # which Shift-Tab reads
    return call


def checked_class(kind: Class) -> Class:
    """Apply `checked` to a class's constructor and its public methods.

    Keywords that a constructor passes on are those of its base class.
    """
    for name, member in list(vars(kind).items()):
        if name == "__init__":
            setattr(kind, name, checked(options=_base_constructor(kind))(member))
        elif inspect.isfunction(member) and not name.startswith("_"):
            setattr(kind, name, checked(member))
    return kind


def _base_constructor(kind: type) -> Callable[..., object] | Mapping[str, object]:
    return next((vars(base)["__init__"] for base in kind.__mro__[1:-1] if "__init__" in vars(base)), NOTHING)


def _expanded(
    signature: inspect.Signature, options: Callable[..., object] | Mapping[str, object]
) -> inspect.Signature:
    """Replace a ``**`` argument by its keywords in a signature."""
    parameters = list(signature.parameters.values())
    if not options or not parameters or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    if callable(options):
        keywords = [
            parameter
            for parameter in inspect.signature(options).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        rest = []
    else:
        keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
        rest = parameters[-1:]
    named = set(signature.parameters)
    more = [parameter for parameter in keywords if parameter.name not in named]
    return signature.replace(parameters=[*parameters[:-1], *more, *rest])


def _explain(signature: inspect.Signature, name: str, keywords: Mapping[str, Any], message: str) -> BadInput:
    """Build the error of arguments that do not fit a signature."""
    names = [parameter for parameter, about in signature.parameters.items() if about.kind in _NAMED]
    names = [parameter for parameter in names if parameter != "self"]
    unknown = [keyword for keyword in keywords if keyword not in names]
    if unknown:
        wrong, value = unknown[0], keywords[unknown[0]]
        fix = near_argument(wrong, names, value=value)
        return BadInput(
            f'{name} has no argument "{wrong}"', about=f"{name}({wrong}={_short(value)})", fix=fix
        )
    usage = ", ".join(_usage(signature.parameters[parameter]) for parameter in names)
    return BadInput(f"the arguments do not fit: {message}", about=f"{name}(…)", fix=f"{name}({usage})")


def near_argument(wrong: str, names: Sequence[str], *, value: object = None, otherwise: str = "") -> str:
    """Write the call's nearest argument with the value; or list all arguments.

    Example:
        >>> near_argument("node", ["nodes", "args"], value=4)
        '`nodes=4`'
    """
    synonyms = [name for name in _SYNONYMS.get(wrong.lower(), ()) if name in names]
    inside = [name for name in names if len(name) > 3 and (name in wrong or wrong in name)]
    near = synonyms or difflib.get_close_matches(wrong.lower(), names, n=1) or inside
    if near:
        return f"`{near[0]}={_short(value)}`"
    if otherwise:
        return otherwise
    more = f"; a flag of the program is `args={{{wrong!r}: {_short(value)}}}`" if "args" in names else ""
    return f"its arguments are {', '.join(names)}{more}"


def _usage(parameter: inspect.Parameter) -> str:
    required = parameter.default is inspect.Parameter.empty
    return parameter.name if required else f"{parameter.name}={_short(parameter.default)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
