"""Parts that commands share: names and their completion, output formats, provider options, errors."""

import ast
import json
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import click
import yaml

from kitlib import clusters
from kitlib.config import DEFAULT_CLUSTER
from kitlib.display.tables import Table, printable
from kitlib.errors import BadInput, KitError
from trainyard_kit.cli.advice import for_terminal
from trainyard_kit.cli.current import VARIABLE, default_cluster

COMMON_OPTIONS = {"name", "provider", "nodes", "cpus", "memory", "gpus", "recreate"}
CLUSTER_HELP = f"The cluster's name; by default {VARIABLE}, the current cluster, or the only one."
Complete = Callable[[click.Context, click.Parameter, str], list[str]]
Flag = Callable[[Callable[..., None]], Callable[..., None]]


class ErrorGroup(click.Group):
    """Commands whose KitErrors are shown without a traceback, and whose help is shown in full."""

    group_class: type[click.Group] | type[type] | None = type
    root: ClassVar[click.Group | None] = None  # the group of the commands that errors suggest

    def invoke(self, ctx: click.Context) -> Any:
        if callable(signal.getsignal(signal.SIGINT)):  # not if the shell ignores it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except KitError as error:
            if ctx.meta.get("verbose"):
                click.echo("".join(traceback.format_exception(error)), err=True)
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would cut the message
            error.fix = self.advise(ctx, error.fix)
            name = click.style(type(error).__name__, fg="red", bold=True)
            click.echo(f"{name}: {printable(str(error))}", err=True)  # a pod's traceback may be in it
            ctx.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
        except KeyboardInterrupt:
            if "cluster" not in ctx.meta:
                ctx.exit(130)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            name = ctx.meta["cluster"]
            fix = f"trainyard cluster status {name}, or trainyard cluster delete {name}"
            stopped = KitError("stopped; completed steps are kept", about=f'cluster "{name}"', fix=fix)
            click.echo(f"Interrupted: {stopped}", err=True)
            ctx.exit(130)

    def advise(self, ctx: click.Context, text: str) -> str:
        """Rewrite suggested calls as commands of the terminal."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        return for_terminal(text, command=command, root=self.root or self, known=ctx.meta)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, item.get_short_help_str(1000)) for name, item in commands if item and not item.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def for_this_terminal(fix: str) -> str:
    """Rewrite the calls of a fix as commands, and the arguments of jobs as options of ``launch``."""
    context = click.get_current_context()
    root = context.find_root().command
    assert isinstance(root, click.Group)
    return for_terminal(fix, command=root.get_command(context, "launch"), root=root, known=context.meta)


def combine(*options: Flag) -> Flag:
    """Combine options into one decorator."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def complete_clusters(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a cluster."""
    try:
        names = [str(row["cluster"]) for row in clusters.list_clusters()]
    except KitError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _complete(title: str) -> Complete:
    """Complete the name of a run or a volume in the cluster of the command."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            cluster = clusters.connect(context.params.get("cluster") or default_cluster())
            names = [str(row[title]) for row in getattr(cluster, f"{title}s")()]
        except KitError:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _remember(title: str) -> Callable[[click.Context, click.Parameter, str], str]:
    def remember(context: click.Context, parameter: click.Parameter, value: str) -> str:
        context.meta[title] = value  # for the fixes of errors
        return value

    return remember


def _remember_cluster(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None and not context.resilient_parsing:
        value = context.meta["default"] = default_cluster()
    if value is not None:
        context.meta["cluster"] = value
    return value


# For commands where the cluster is optional, or found later.
NAMED_CLUSTER = click.option("--cluster", "-c", help=CLUSTER_HELP, shell_complete=complete_clusters)
CLUSTER = click.option(
    "--cluster", "-c", help=CLUSTER_HELP, shell_complete=complete_clusters, callback=_remember_cluster
)
NEW_CLUSTER_NAME = click.argument(
    "name", default=DEFAULT_CLUSTER, shell_complete=complete_clusters, callback=_remember("cluster")
)
CLUSTER_NAME = click.argument(
    "name", required=False, shell_complete=complete_clusters, callback=_remember_cluster
)
RUN_NAME = click.argument("name", shell_complete=_complete("run"), callback=_remember("run"))
VOLUME_NAME = click.argument("name", shell_complete=_complete("volume"), callback=_remember("volume"))
OUTPUT = click.option(
    "--output", "-o", type=click.Choice(["json", "yaml", "name"]), help="Output format; by default a table."
)
YES = click.option("--yes", "confirm", is_flag=True, help="Skip the confirmation.")
IGNORE_NOT_FOUND = click.option(
    "--ignore-not-found", is_flag=True, help="Exit with status 0 if it does not exist."
)


def next_step(text: str) -> None:
    """Print the next step on stderr."""
    click.echo(f"Next: {text}", err=True)


def show(output: str | None, *tables: Table, **named: Table) -> None:
    """Print tables, their rows as JSON or YAML, or the names in their first columns.

    Args:
        output: ``json``, ``yaml``, ``name``, or None for the tables.
        tables: One table, whose rows are printed as a list.
        named: Several tables, each printed as a list under its name.
    """
    all_tables = [*tables, *named.values()]
    rows: object = [_plain(row) for row in tables[0]] if tables else {}
    if named:
        rows = {name: [_plain(row) for row in table] for name, table in named.items()}
    if output is None:
        click.echo("\n\n".join(repr(table) for table in all_tables))
    elif output == "name":
        for table in all_tables:
            for row in table.rows:
                click.echo(row[0])
    else:
        text = json.dumps(rows, indent=2, ensure_ascii=False)
        if output == "yaml":
            text = yaml.safe_dump(rows, sort_keys=False, allow_unicode=True).rstrip("\n")
        click.echo(text)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row for JSON and YAML."""
    return {
        key.replace(" ", "_"): value if isinstance(value, bool | int | float | None) else str(value)
        for key, value in row.items()
    }


def options_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse options to Python values: ``spot=true`` is True, ``hours=4`` is 4; others are text."""
    parsed = {}
    for option in pairs:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise BadInput("an option is a key and a value", about=option, fix="--set region=eu-central-1")
        parsed[key] = _value(value)
    return parsed


def _value(text: str) -> object:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    if isinstance(value, float) and repr(value) != text:  # a version, such as 1.30
        return text
    return value if isinstance(value, int | float | dict | list) else text


def _parse_options(context: click.Context, _: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
    parsed = options_of(pairs)
    if reserved := sorted(COMMON_OPTIONS & parsed.keys()):
        raise BadInput(
            "this option is not specific to a provider",
            about=f"--set {reserved[0]}={parsed[reserved[0]]}",
            fix=f"{context.command_path} --help shows the options of all providers",
        )
    return parsed


OPTION = click.option(
    "--set",
    "option",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_options,
    help="An option of the provider; repeatable.",
)
