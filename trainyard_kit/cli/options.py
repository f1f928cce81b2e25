"""What commands share: ``--cluster``, ``--option`` for those of a provider, and how errors are shown."""

import ast
from collections.abc import Sequence
from typing import Any

import click

from kitlib import config
from kitlib.display.tables import printable
from kitlib.errors import BadInput, KitError

CLUSTER = click.option(
    "--cluster",
    "-c",
    default=config.DEFAULT_CLUSTER,
    envvar="TRAINYARD_CLUSTER",
    show_default=True,
    help="Its name; or TRAINYARD_CLUSTER.",
)
OF_ALL_PROVIDERS = {"name", "provider", "nodes", "cpus", "memory", "gpus", "recreate"}


class ErrorGroup(click.Group):
    """Commands whose KitErrors are shown without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KitError as error:
            name = click.style(type(error).__name__, fg="red", bold=True)
            click.echo(f"{name}: {printable(str(error))}", err=True)  # a pod's traceback may be in it
            ctx.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def options_of(given: Sequence[str]) -> dict[str, Any]:
    """Parse options to Python values: ``spot=true`` is True, ``hours=4`` is 4, all else is text.

    Raises:
        BadInput: One has no equals sign.
    """
    read = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key.isidentifier():
            raise BadInput("an option is a key and a value", about=each, fix="--option region=eu-central-1")
        read[key] = _value(value)
    return read


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


def _own(context: click.Context, _: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    read = options_of(given)
    if taken := sorted(OF_ALL_PROVIDERS & read.keys()):
        raise BadInput(
            "this is no option of one provider",
            about=f"--option {taken[0]}={read[taken[0]]}",
            fix=f"{context.command_path} --help shows the flags and arguments of all",
        )
    return read


OPTION = click.option(
    "--option",
    "-o",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_own,
    help="The provider's own; repeat it.",
)
