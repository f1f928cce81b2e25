"""Text from pods and servers, made safe for a terminal."""

import re

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)  # colours and the like; ECMA-48
# The rest of what moves a cursor or turns the direction of text around; and halves of characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text without the sequences that command a terminal; other control characters become escapes.

    Tabs and ends of lines stay.

    Example:
        >>> printable("\\x1b[31mred\\x1b[0m bell\\x07")
        'red bell\\\\x07'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), _ANSI.sub("", text))
