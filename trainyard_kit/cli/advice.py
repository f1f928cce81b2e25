"""The terminal's form of what an error advises: a command for a call of Python, an option for an argument.

Errors advise calls, as notebooks need them: ``kit.create_cluster("eks", region="eu-central-1")``. A terminal
shows the command that does the same, `COMMANDS`; its arguments and options are those that click knows.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping

import click

PROGRAM = "trainyard"
# Each call's command, and the names of its positional arguments.
COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kit.build_image": ("image build", ("name",)),
    "kit.clusters.find().delete": ("cluster delete", ()),
    "kit.connect": ("cluster status", ("name",)),
    "kit.create_cluster": ("cluster create", ("provider",)),
    "kit.credentials": ("doctor", ()),
    "kit.delete_resources": ("resources delete", ("provider",)),
    "kit.doctor": ("doctor", ()),
    "kit.IndexedJob": ("launch", ("trainer",)),
    "kit.install": ("operator install", ("name",)),
    "kit.launch": ("launch", ("trainer",)),
    "kit.list_clusters": ("cluster list", ()),
    "kit.list_resources": ("resources list", ("provider",)),
    "kit.preflight": ("doctor", ("provider",)),
    "kit.prepare_dataset": ("dataset prepare", ("name",)),
    "kit.TorchElastic": ("launch --kind torch-elastic", ("trainer",)),
    "kit.uninstall": ("operator uninstall", ("name",)),
    "kit.workshop.add": ("workshop add", ("name",)),
    "kit.workshop.remove": ("workshop remove", ("name",)),
    "cluster.create_volume": ("volume create", ("name",)),
    "cluster.delete": ("cluster delete", ()),
    "cluster.events": ("kubectl events", ()),
    "cluster.kubectl": ("kubectl", ("words",)),
    "cluster.nodes": ("kubectl get nodes", ()),
    "cluster.pods": ("kubectl get pods -o wide", ()),
    "cluster.runs": ("run list", ()),
    "cluster.scale": ("cluster scale", ("nodes",)),
    "cluster.top": ("kubectl top", ("words",)),
    "cluster.volumes": ("volume list", ()),
    "cluster.wait_ready": ("kubectl wait --for=condition=Ready nodes --all", ()),
    "install": ("operator install", ("name",)),
    "job.manifest": ("launch --dry-run", ("trainer",)),
    "run.delete": ("run delete", ()),
    "run.events": ("kubectl events", ()),
    "run.logs": ("run logs", ()),
    "run.pause": ("run pause", ()),
    "run.resume": ("run resume", ()),
    "run.scale": ("run scale", ("workers",)),
    "run.wait": ("run wait", ()),
    "top": ("kubectl top", ("words",)),
    "volume.delete": ("volume delete", ()),
    "volume.download": ("volume download", ("path", "to")),
    "volume.ls": ("volume ls", ("path",)),
    "volume.upload": ("volume upload", ("path", "to")),
}
# No command does this.
IN_PYTHON = (
    "cluster.link",
    "cluster.unlink",
    "job.patch",
    "kit.check",
    "kit.workshop.Jupyter",
    "run.timeline",
)
CALL = re.compile(r"\b(?:kit|cluster|run|volume|job)(?:\.\w+)+\(|\b(?:install|top)\((?=\")")
KEYWORD = re.compile(
    r"""(?<![\w\-"'.{/=$])([a-z]\w*)=(?!=)("[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[\w.…]+)?(?![\w"'])"""
)
AS_ONE = {"cpu": "cpus"}  # Python's job= arguments that have another name here


def for_terminal(
    text: str, *, command: click.Command | None, root: click.Group, known: Mapping[str, str]
) -> str:
    """Write a piece of advice for a terminal.

    Args:
        text: With calls and keyword arguments of Python.
        command: That the user gave; keyword arguments become its options.
        root: All commands.
        known: The names that the user gave: of the ``cluster``, ``run`` and ``volume``.
    """
    parts, end = [], 0
    for start, stop, call in _calls(text):
        words = _command_of(call, root, known)
        parts += [_options(text[end:start], command), text[start:stop] if words is None else words]
        end = stop
    return "".join([*parts, _options(text[end:], command)])


def _calls(text: str) -> Iterator[tuple[int, int, ast.Call]]:
    """Find the calls in a text: where each begins and ends, and its syntax."""
    end = 0
    while match := CALL.search(text, end):
        for stop in (place.end() for place in re.finditer(r"\)", text) if place.end() > match.end() - 1):
            try:
                call = ast.parse(text[match.start() : stop].replace("…", "..."), mode="eval").body
            except SyntaxError:
                continue
            while chained := re.compile(r"\.\w+\(\)").match(text, stop):
                stop = chained.end()
                call = ast.parse(text[match.start() : stop].replace("…", "..."), mode="eval").body
            if isinstance(call, ast.Call):
                yield match.start(), stop, call
            end = stop
            break
        else:
            end = match.end()


def _command_of(call: ast.Call, root: click.Group, known: Mapping[str, str]) -> str | None:
    """Write the command for a call; None if there is none."""
    title, known = ast.unparse(call.func), dict(known)
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        inner = call.func.value
        title = f"{ast.unparse(inner.func)}().{call.func.attr}"
        known["cluster"] = str(_value(inner.args[0])) if inner.args else "NAME"
    if title not in COMMANDS:
        return None
    words, positional = COMMANDS[title]
    arguments = {name: _value(argument) for name, argument in zip(positional, call.args, strict=False)}
    arguments |= {item.arg: _value(item.value) for item in call.keywords if item.arg}
    if title == "kit.connect" and arguments.pop("start", False):
        words = "cluster start"
    if isinstance(arguments.get("cluster"), str):
        known["cluster"] = str(arguments["cluster"])
    if words.startswith("kubectl"):
        return " ".join(
            [PROGRAM, "kubectl", *_where(known), words[8:], str(arguments.get("words", ""))]
        ).rstrip()
    return _render(words, arguments, _find(root, words), known)


def _find(root: click.Group, message: str) -> click.Command:
    command: click.Command = root
    for word in message.split():
        candidates = (
            command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        )
        command = candidates or command
    return command


def _value(node: ast.expr) -> object:
    """The value of an argument; of a name or an ellipsis, what stands for any."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        if isinstance(node, ast.Dict):
            return {
                _value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key
            }
        return ...
    return value


def _render(
    message: str, arguments: dict[str, object], command: click.Command, known: Mapping[str, str]
) -> str:
    receiver = message.split()[0]
    values = {AS_ONE.get(name, name): value for name, value in arguments.items() if name != "cluster"}
    line = [PROGRAM, *message.split()]
    for param in (param for param in command.params if isinstance(param, click.Argument)):
        name = str(param.name)
        variable = (
            known.get(receiver) if name == "name" and receiver in ("cluster", "run", "volume") else None
        )
        value = values.pop(name, variable if variable is not None else ...)
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
    """Write an argument as words of a command; none if it has no such option."""
    options = {flag.lstrip("-").replace("-", "_"): param for param in command.params for flag in param.opts}
    options |= {str(param.name): param for param in command.params}
    param = options.get(name) or options.get(AS_ONE.get(name, name))
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


def _options(text: str, command: click.Command | None) -> str:
    """Write keyword arguments as the options of a command."""
    if command is None:
        return text

    def option(match: re.Match[str]) -> str:
        name, written = match.groups()
        value: object = ...
        if written and "…" not in written:
            try:
                value = ast.literal_eval(written)
            except (ValueError, SyntaxError):
                value = written
        words = _option(name, value, command)
        if written is None and len(words) == 2:
            return words[0]
        return " ".join(words) or match[0]

    return KEYWORD.sub(option, text)
