"""Options of commands, as a provider takes them: ``--option region=eu-central-1``."""

import ast
from collections.abc import Sequence

import click

from kitlib.errors import BadInput

OPTION = click.option(
    "--option", "-o", multiple=True, metavar="KEY=VALUE", help="The provider's own; repeat it."
)


def options_of(given: Sequence[str]) -> dict[str, object]:
    """Return options as Python has them: ``spot=true`` is True, ``hours=4`` is 4, all else is text.

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
