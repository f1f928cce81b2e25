"""A trainer's arguments as command-line words, in the spelling of the program's own parser.

The source is read and not run: argparse, click, typer, fire, hydra and absl. What another parser declares,
or what is computed, is passed as it was typed, or as Python where the program evaluates it. Pure.
"""

import ast
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.syntax import parse

SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}
OPTION, TYPED, HYDRA, PYTHON, DATACLASS = "option", "typed", "hydra", "python", "dataclass"
_LIBRARIES = ("absl", "argparse", "click", "fire", "hydra", "omegaconf", "rich_click", "typer")
# Functions that declare options which are not read: in another file, or by names of their own.
_UNKNOWN_OPTIONS = re.compile(
    r"parse_known\w{0,20}|set_defaults_from|add_(?!argument$|argument_group$)\w{0,30}(arg|option|flag)\w{0,30}"
)
_SPLITS = re.compile(r"['\"]=['\"]")  # takes `--option=value` apart
# How argparse takes false and true, by the type: `bool("")` is false, and `bool("False")` is true.
_BOOLEAN_FORMS = {"bool": ("=", "=True"), "int": ("=0", "=1"), "bare": ("=False", "")}


@dataclass(frozen=True)
class Flag:
    """An option of a program, or an argument without a name.

    Attributes:
        names: Its spellings; of one without a name, that of its value.
        negation: The spelling that switches it off; empty if it has none.
        is_switch: Whether it takes no value.
        list_style: How it takes a list: as ``words``, the option ``repeated``, by ``commas`` or ``spaces``.
        is_false_switch: Whether it makes its ``dest`` false.
        kind: The name of its value's type; for booleans a key of `_BOOLEAN_FORMS`.
    """

    names: tuple[str, ...]
    dest: str = ""
    negation: str = ""
    is_switch: bool = False
    list_style: str = ""
    is_false_switch: bool = False
    kind: str = ""

    def words(self, value: object) -> list[str]:
        """Write the option with a value."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        positional = not name.startswith("-")
        if isinstance(value, bool) and (self.is_switch or self.negation):
            return [name] if value else [self.negation] if self.negation else []
        if isinstance(value, int) and self.is_switch:
            return [name] * value  # -vv
        if isinstance(value, bool) and self.kind in _BOOLEAN_FORMS:
            return [name + _BOOLEAN_FORMS[self.kind][value]]
        if isinstance(value, list | tuple) and self.list_style:
            if value and all(isinstance(item, list | tuple) for item in value):
                return [word for item in value for word in self.words(item)]
            if self.list_style in ("commas", "spaces"):
                return [f"{name}={(',' if self.list_style == 'commas' else ' ').join(map(str, value))}"]
            if self.list_style == "repeated":
                return [f"{name}={item}" for item in value]
            return [*([] if positional else [name]), *map(str, value)]
        value = _json(value)
        if positional:
            return [str(value)]
        return [f"{name}={value}"] if name.startswith("--") else [name, str(value)]


@dataclass
class Parser:
    """The command line of a program.

    Attributes:
        style: ``option``; ``hydra`` for ``key=value``; ``typed`` where the program does not say.
        is_complete: Whether all its options are known, so that any other is a mistake.
        spellings: Of options that are in the source, however they are declared.
        separate_values: Whether the program looks for a value in the word after its option.
    """

    style: str = TYPED
    flags: list[Flag] = field(default_factory=list)
    is_complete: bool = False
    spellings: Mapping[str, str] = field(default_factory=dict)
    separate_values: bool = False

    def find(self, key: str) -> Flag | None:
        """Find an option by one of its spellings, with dashes or underscores, or by its ``dest``."""
        exact = [flag for flag in self.flags if {key, f"-{key}", f"--{key}"} & {*flag.names}]
        alike = [flag for flag in self.flags if _plain(key) in map(_plain, flag.names)]
        stored = [flag for flag in self.flags if _plain(key) == _plain(flag.dest or "-")]
        return next(iter([*exact, *alike, *stored]), None)

    def words(self, args: Mapping[str, Any]) -> list[str]:
        """Write a dict of arguments, those without a name first."""
        first: list[str] = []
        rest: list[str] = []
        for key, value in args.items():
            flag = self.find(key)
            if flag is None and self.style == HYDRA and not key.startswith("-"):
                rest.append(f"{key}={_hydra(value)}")
                continue
            if flag is None and self.style in (PYTHON, DATACLASS) and value is not None:
                list_style = "words" if self.style == DATACLASS else ""
                value = value if list_style else str(value)  # a list as Python writes it
                flag = Flag((key if key.startswith("-") else f"--{key}",), list_style=list_style)
            if flag and flag.is_switch and not flag.negation and isinstance(value, bool):
                by_dest = flag.is_false_switch and _plain(key) not in map(_plain, flag.names)
                dest, value = _plain(flag.dest or key), value != by_dest
                opposite = (
                    []
                    if value
                    else [item for item in self.flags if item.is_false_switch and item is not flag]
                )
                off = [item.names[0] for item in opposite if not by_dest and _plain(item.dest) == dest]
                flag = replace(flag, negation=off[0] if off else "")
            if value is None or (
                value is False and (flag is None or flag.is_switch) and not (flag and flag.negation)
            ):
                continue
            if flag is None:
                name = self.spellings.get(_plain(key), key)
                is_separate = self.separate_values and name in self.spellings.values() and value is not True
                rest += [name, str(_json(value))] if is_separate else _as_typed(name, value)
            else:
                (rest if flag.names[0].startswith("-") else first).extend(flag.words(value))
        return first + rest

    def check(self, keys: Iterable[str]) -> None:
        """Raise BadInput for an option that the program does not have, with the near one."""
        known = [name for flag in self.flags for name in flag.names]
        for key in keys if self.is_complete else ():
            if self.find(key) or _plain(key) in ("help", "h", *self.spellings):
                continue
            if any(name.startswith(key) and key.startswith("--") for name in known):
                continue  # argparse takes the beginning of a name
            near = difflib.get_close_matches(_plain(key), map(_plain, known), n=1)
            name = next((name for name in known if near and _plain(name) == near[0]), "")
            options = ", ".join(name for name in known if name.startswith("--"))
            fix = f"did you mean {name}?" if name else f"its flags are {options or 'none'}"
            raise BadInput(f"the program has no flag {key}", about=f"args: {key!r}", fix=fix)


def command_line(
    args: Mapping[str, Any] | Sequence[object], programs: Iterable[str | bytes] = ()
) -> list[str]:
    """Convert a trainer's arguments to words, as its sources spell them.

    Example:
        >>> source = 'p.add_argument("--log-every"); p.add_argument("--dims", nargs="+")'
        >>> command_line({"log_every": 5, "dims": [1, 2], "other": None}, [source])
        ['--log-every=5', '--dims', '1', '2']
    """
    parser = read(programs)
    if isinstance(args, Mapping):
        keys = {str(key): value for key, value in args.items()}
        parser.check(key for key, value in keys.items() if value is not None)
        return parser.words(keys)
    words = [str(word) for word in args]
    own = words[: words.index("--")] if "--" in words else words
    parser.check(word.partition("=")[0] for word in own if word.startswith("--"))
    return words


def read(programs: Iterable[str | bytes]) -> Parser:
    """Read a program's command line from its sources; the first one is the program itself."""
    trees, evaluates, separate_values = [], False, False
    for source in programs:
        try:
            trees.append(parse(source))
        except (SyntaxError, ValueError):
            continue
        evaluates |= all(word in str(source) for word in ("literal_eval", "sys.argv"))
        separate_values |= "sys.argv" in str(source) and not _SPLITS.search(str(source))
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    aliases = {name: method for tree in trees for name, method in _aliases(tree)}
    for call in calls:
        if isinstance(call.func, ast.Name):
            call.func = aliases.get(call.func.id, call.func)
    names = {_name(call.func) for call in calls}
    if any(name.endswith("hydra.main") for name in names):
        return Parser(HYDRA)
    if any(name.endswith("Fire") for name in names):
        return Parser(PYTHON)
    flags = [flag for call in calls for flag in _declared(call)]
    flags += [flag for tree in trees for flag in _typer(tree, names)]
    texts = (_text(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    spellings = {_plain(text): text for text in texts if re.fullmatch(r"--[\w-]{1,100}", text)}
    if any(name.endswith("OmegaConf.from_cli") for name in names):
        return Parser(HYDRA, flags)
    if any(name.endswith(("HfArgumentParser", "TrlParser")) for name in names):
        return Parser(DATACLASS, flags)
    if not flags:
        return Parser(PYTHON if evaluates else TYPED, spellings=spellings, separate_values=separate_values)
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    parsers = {_name(node.targets[0]) for node in nodes if "ArgumentParser(" in ast.unparse(node.value)}
    return Parser(OPTION, flags, _is_complete(calls, names, parsers), spellings)


def _aliases(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of ``add = parser.add_argument``, of ``from click import option``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in _LIBRARIES:
            module = ast.Name(str(node.module))
            yield from ((item.asname or item.name, ast.Attribute(module, item.name)) for item in node.names)
        if isinstance(node, ast.Assign) and _name(node.value).endswith(".add_argument"):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))


def _is_complete(calls: Sequence[ast.Call], names: set[str], parsers: set[str]) -> bool:
    """Check that an argparse parser declares all options, each with a literal name."""
    if not any(name.endswith("ArgumentParser") for name in names):
        return False
    if any(_UNKNOWN_OPTIONS.fullmatch(name.rpartition(".")[2]) for name in names):
        return False
    for call in calls:
        name, words = _name(call.func), {keyword.arg for keyword in call.keywords}
        if name.endswith("ArgumentParser") and (
            name.split(".")[-1] != "ArgumentParser" or "parents" in words
        ):
            return False
        if name.endswith("add_argument") and (
            None in words
            or not call.args
            or not all(map(_text, call.args))
            or any(_name(item.value).endswith(("REMAINDER", "PARSER")) for item in call.keywords)
        ):
            return False
        passed = [_name(argument) for argument in call.args]
        if any(item.endswith("parser") or item in parsers for item in passed) and not name.endswith("print"):
            return False  # another function may add its own
    return True


def _declared(call: ast.Call) -> Iterator[Flag]:
    """Yield the flags that a call declares by argparse, click, or absl."""
    name = _name(call.func)
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    literal = [text for argument in call.args if (text := _text(argument))]
    last = name.rpartition(".")[2]
    if last == "add_argument" and literal:
        action = _text(words.get("action")) or _name(words.get("action"))
        long = next((item for item in literal if item.startswith("--")), "")
        negation = f"--no-{long[2:]}" if action.endswith("BooleanOptionalAction") else ""
        style = "words" if "nargs" in words and _text(words["nargs"]) != "?" else ""
        style = "repeated" if action in ("append", "extend") and not style else style
        dest, kind = _text(words.get("dest")), "bare" if "const" in words else _name(words.get("type"))
        is_switch, is_false = action in SWITCHES, action == "store_false"
        yield Flag(tuple(literal), dest, negation, is_switch, style, is_false, kind)
    elif last in ("option", "argument") and name != last and literal:
        yield _click(literal, words)
    elif last.startswith("DEFINE_") and literal:
        negation = f"--no{literal[0]}" if last in ("DEFINE_bool", "DEFINE_boolean") else ""
        lists = {"DEFINE_list": "commas", "DEFINE_spaceseplist": "spaces"}
        style = "repeated" if "multi" in last else lists.get(last, "")
        yield Flag((f"--{literal[0]}",), literal[0], negation, bool(negation), style)


def _click(literal: Sequence[str], words: Mapping[str | None, ast.expr]) -> Flag:
    options = [name for name in literal if name.startswith("-")]
    dest = next((name for name in literal if not name.startswith("-")), "")
    positive = tuple(name.partition("/")[0].strip() for name in options)
    negative = next((name.partition("/")[2].strip() for name in options if "/" in name), "")
    is_switch = bool(negative) or _is_true(words.get("is_flag")) or _is_true(words.get("count"))
    takes_list = "nargs" in words or isinstance(words.get("type"), ast.Tuple)
    list_style = "repeated" if _is_true(words.get("multiple")) else "words" if takes_list else ""
    return Flag(positive or (dest,), dest, negative, is_switch, list_style)


def _typer(tree: ast.Module, names: set[str]) -> Iterator[Flag]:
    """Yield the parameters of typer's commands: those without a default have no name on the command line."""
    if not any(name.startswith("typer.") for name in names):
        return
    runs = {_name(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args}
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        decorators = [
            _name(item.func if isinstance(item, ast.Call) else item) for item in function.decorator_list
        ]
        if function.name not in runs and not any(
            name.endswith((".command", ".callback")) for name in decorators
        ):
            continue
        arguments = function.args.args + function.args.kwonlyargs
        defaults = [None] * (len(function.args.args) - len(function.args.defaults)) + function.args.defaults
        for argument, default in zip(arguments, [*defaults, *function.args.kw_defaults], strict=True):
            annotation = ast.unparse(argument.annotation) if argument.annotation else ""
            parameters = [
                text for node in _options(argument, default) for item in node.args if (text := _text(item))
            ]
            options = [name for name in parameters if name.startswith("-")]
            kind = {_name(node.func).rpartition(".")[2] for node in _options(argument, default)}
            name = argument.arg.replace("_", "-")
            if "Argument" in kind or (default is None and "Option" not in kind):
                yield Flag((argument.arg,), argument.arg, list_style="words")
                continue
            is_switch = "bool" in annotation
            negative = f"--no-{name}" if is_switch and not options else ""
            negative = next((item.partition("/")[2] for item in options if "/" in item), negative)
            positive = tuple(item.partition("/")[0] for item in options) or (f"--{name}",)
            yield Flag(positive, argument.arg, negative, is_switch, "repeated")


def _options(argument: ast.arg, default: ast.expr | None) -> list[ast.Call]:
    """List the calls of ``typer.Option`` and ``typer.Argument`` that describe a parameter."""
    nodes = [node for part in (argument.annotation, default) if part for node in ast.walk(part)]
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and _name(node.func).rpartition(".")[2] in ("Option", "Argument")
    ]


def _as_typed(key: str, value: object) -> list[str]:
    name = key if key.startswith("-") else f"--{key}"
    if value is True:
        return [name]
    return [f"{name}={_json(value)}"] if name.startswith("--") else [name, str(_json(value))]


def _json(value: object) -> object:
    is_collection = isinstance(value, list | tuple | dict)
    return json.dumps(value, separators=(",", ":"), default=str) if is_collection else value


def _hydra(value: object) -> str:
    """Write a value as hydra's grammar has it: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if isinstance(value, str) and re.search(r"['\"=()\[\]{}#&]", value):
        interpolates = "}" in value.partition("${")[2]
        is_quoted = re.fullmatch(r"\[.*\]|\{.*\}|\w+\(.*\)|'.*'|\".*\"", value, re.DOTALL) or interpolates
        return value if is_quoted else "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _name(node: ast.AST | None) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)
