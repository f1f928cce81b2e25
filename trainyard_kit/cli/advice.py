"""Rewrite the fixes of errors for a terminal: Python calls as commands, arguments as options.

Errors suggest Python calls between backticks: `kit.connect("lab", start=True)`. A terminal shows the
equivalent command: `run.wait()` is `run wait`, other calls are in `COMMANDS`. Click has the arguments and
options. Why errors contain Python text: docs/decisions/fixes-are-python.md.
"""

import ast
import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress

import click

from kitlib.errors import CODE

PROGRAM = "trainyard"
# The commands of calls that are not named like their command, and the names of their positional arguments.
COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kit.build_image": ("image build", ("name",)),
    "kit.clusters.find().delete": ("cluster delete", ()),
    "kit.connect": ("cluster status", ("name",)),
    "kit.connect().run": ("run wait", ("name",)),
    "kit.create_cluster": ("cluster create", ("provider",)),
    "kit.credentials": ("doctor", ()),
    "kit.IndexedJob": ("launch", ("trainer",)),
    "kit.install": ("operator install", ("name",)),
    "kit.list_clusters": ("cluster list", ()),
    "kit.list_resources": ("resources list", ("provider",)),
    "kit.preflight": ("doctor", ("provider",)),
    "kit.prepare_dataset": ("dataset prepare", ("name",)),
    "kit.TorchElastic": ("launch --kind torch-elastic", ("trainer",)),
    "cluster.create_volume": ("volume create", ("name",)),
    "cluster.events": ("kubectl events", ()),
    "cluster.kubectl": ("kubectl", ("words",)),
    "cluster.nodes": ("kubectl get nodes", ()),
    "cluster.pods": ("kubectl get pods -o wide", ()),
    "cluster.top": ("kubectl top", ("words",)),
    "cluster.volumes": ("volume list", ()),
    "cluster.wait_ready": ("kubectl wait --for=condition=Ready nodes --all", ()),
    "job.manifest": ("launch --dry-run", ("trainer",)),
    "run.events": ("kubectl events", ()),
    "run.pods": ("kubectl get pods", ()),
    "run.why": ("why", ()),
}
# Calls without a command.
IN_PYTHON = (
    "cluster.link",
    "cluster.unlink",
    "job.patch",
    "kit.check",
    "kit.workshop.Jupyter",
    "run.timeline",
)
OPTION_NAMES = {"cpu": "cpus"}  # arguments of jobs whose option has another name


def for_terminal(
    fix: str, *, command: click.Command | None, root: click.Group, known: Mapping[str, str]
) -> str:
    """Rewrite a fix for a terminal.

    Args:
        fix: Text with Python calls and keyword arguments between backticks.
        command: The command that the user ran; keyword arguments become its options.
        root: The group of all commands.
        known: The names of the ``cluster``, ``run`` and ``volume`` in the user's command.
    """

    def rewrite(match: re.Match[str]) -> str:
        name, _, value = match[1].partition("=")
        if name.isidentifier():
            return _argument(name, value, command) or match[1]
        with suppress(SyntaxError):  # the text is not a Python expression
            call = ast.parse(match[1].replace("…", "..."), mode="eval").body
            return (isinstance(call, ast.Call) and _command_of(call, root, known)) or match[1]
        return match[1]

    return CODE.sub(rewrite, fix)


def _argument(name: str, value: str, command: click.Command | None) -> str:
    """Write an argument as an option of a command; empty if the command has no such option."""
    if command is None:
        return ""
    try:
        words = _option(name, ast.literal_eval(value) if value and "…" not in value else ..., command)
    except (SyntaxError, ValueError):
        words = _option(name, value, command)
    return " ".join(words if value or len(words) != 2 else words[:1])


def _command_of(call: ast.Call, root: click.Group, known: Mapping[str, str]) -> str | None:
    """Write the command for a call; None if there is none."""
    title, known = ast.unparse(call.func), dict(known)
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        inner = call.func.value
        title = f"{ast.unparse(inner.func)}().{call.func.attr}"
        known["cluster"] = str(_value(inner.args[0])) if inner.args else "NAME"
    words, positional = COMMANDS.get(title) or _same_name(title, root)
    if not words:
        return None
    arguments = {name: _value(argument) for name, argument in zip(positional, call.args, strict=False)}
    arguments |= {item.arg: _value(item.value) for item in call.keywords if item.arg}
    if title == "kit.connect" and arguments.pop("start", False):
        words = "cluster start"
    if isinstance(arguments.get("cluster"), str):
        known["cluster"] = str(arguments["cluster"])
    if words.startswith("kubectl"):
        rest = str(arguments.get("words", ""))
        return " ".join([PROGRAM, "kubectl", *_where(known), words[8:], rest]).rstrip()
    return _render(words, arguments, _find(root, words), known)


def _same_name(title: str, root: click.Group) -> tuple[str, tuple[str, ...]]:
    """Return the command with the name of a call, and its arguments after the receiver; empty if none."""
    words = title.removeprefix("kit.").replace(".", " ")
    command = _find(root, words)
    if command.name != words.split()[-1] or isinstance(command, click.Group):
        return "", ()
    names = [str(param.name) for param in command.params if isinstance(param, click.Argument)]
    return words, tuple(name for name in names if title.startswith("kit.") or name != "name")


def _find(root: click.Group, words: str) -> click.Command:
    command: click.Command = root
    for word in words.split():
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return command


def _value(node: ast.expr) -> object:
    """Evaluate a literal argument; return an ellipsis for any other."""
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key}
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


def _render(
    words: str, arguments: dict[str, object], command: click.Command, known: Mapping[str, str]
) -> str:
    receiver = words.replace("why", "run").split()[0]
    values = {OPTION_NAMES.get(name, name): value for name, value in arguments.items() if name != "cluster"}
    line = [PROGRAM, *words.split()]
    for param in (param for param in command.params if isinstance(param, click.Argument)):
        is_receiver = param.name == "name" and receiver in ("cluster", "run", "volume")
        value = values.pop(str(param.name), known.get(receiver, ...) if is_receiver else ...)
        if value is not ... or param.required:
            line += _word(param, value)
    for name, value in values.items():
        line += _option(name, value, command)
    if any(param.name == "cluster" for param in command.params):
        line += _where(known)
    return " ".join(line)


def _where(known: Mapping[str, str]) -> list[str]:
    name = known.get("cluster", "")
    return ["-c", name] if name and name != known.get("default") else []


def _word(param: click.Parameter, value: object) -> list[str]:
    if value is ...:
        return [param.make_metavar(click.Context(click.Command(""))).strip("[]").upper()]
    if isinstance(value, Mapping):  # arguments of a trainer
        return ["--", *(f"--{key}={item}" for key, item in value.items())]
    return [shlex.quote(str(value))]


def _option(name: str, value: object, command: click.Command) -> list[str]:
    """Write an argument as an option of a command; empty if the command has no such option."""
    options = {flag.lstrip("-").replace("-", "_"): param for param in command.params for flag in param.opts}
    options |= {str(param.name): param for param in command.params}
    param = options.get(name) or options.get(OPTION_NAMES.get(name, name))
    if isinstance(param, click.Argument):
        return _word(param, value)
    if isinstance(param, click.Option):
        flag = max(param.opts, key=len)
        if param.is_flag or param.flag_value is True:
            return [flag] if value else []
        if isinstance(value, Mapping):
            return [word for key, item in value.items() for word in (flag, f"{key}={_shown(item)}")]
        return [flag, shlex.quote(_shown(value))]
    if "option" in options:
        return ["--set", shlex.quote(f"{name}={_shown(value)}")]
    return []


def _shown(value: object) -> str:
    if value is ...:
        return "NAME"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
