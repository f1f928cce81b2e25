"""Tables, as aligned text in a terminal and as HTML in a notebook, and text that is safe to print."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import pandas

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)  # colours and the like; ECMA-48
# Other characters that move a cursor or change the direction of text; and lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


SHOWN_LINES, SHOWN_CHARACTERS = (
    1000,
    2000,
)  # lines of a text and characters of a line in a cell: a notebook file keeps them all


class Text(str):
    """Text whose ``repr`` is the end of the text, so that the last line of a cell prints it.

    Example:
        >>> Text("two\\nlines")
        two
        lines
    """

    __slots__ = ()

    def __repr__(self) -> str:
        lines = str(self).rstrip("\n").split("\n")
        return shorten(lines[-SHOWN_LINES:], "print(…)", hidden=max(0, len(lines) - SHOWN_LINES))


def shorten(lines: Sequence[str], call: str, *, hidden: int) -> str:
    """Join shortened lines, after one with the number of hidden lines and the call that shows all."""
    end = [line[:SHOWN_CHARACTERS] + "…" * (len(line) > SHOWN_CHARACTERS) for line in lines]
    return "\n".join([f"… {hidden:,} earlier lines; {call} shows all of them"][: hidden and 1] + end)


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Example:
        >>> Table(("node", "cpu"), [("node-0", 2)])
        NODE    CPU
        node-0  2
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "nothing here"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(self.columns, self.rows[index], strict=True))

    def frame(self) -> "pandas.DataFrame":
        """Convert to a pandas DataFrame."""
        import pandas  # half a second, and seldom needed

        return pandas.DataFrame(list(self), columns=list(self.columns))

    def __repr__(self) -> str:
        if not self.rows:
            return self.empty
        cells = [[column.upper() for column in self.columns]]
        cells += [[_cell(value) for value in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<em>{escape(self.empty)}</em>"
        head = "".join(f"<th style='text-align:left'>{escape(column)}</th>" for column in self.columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left'>{escape(_cell(value))}</td>" for value in row)
            + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def plain(text: str) -> str:
    """Remove the sequences that control a terminal, such as colours; other control characters stay."""
    return _ANSI.sub("", text)


def printable(text: str) -> str:
    """Remove the sequences that control a terminal; other control characters become escapes.

    Tabs and newlines stay.

    Example:
        >>> printable("\\x1b[31mred\\x1b[0m bell\\x07")
        'red bell\\\\x07'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), plain(text))


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return printable(" ".join(str(value).split()))  # a message of several lines would break the row


def age(since: str | None, now: datetime | None = None) -> str:
    """Format the age of a Kubernetes time as kubectl does: ``42s``, ``5m``, ``3h``, ``2d``."""
    began = parse_time(since)
    if began is None:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - began).total_seconds()))
    for limit, unit, size in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


@overload
def parse_time(text: None) -> None: ...


@overload
def parse_time(text: str) -> datetime: ...


def parse_time(text: str | None) -> datetime | None:
    """Parse an RFC 3339 time; None for none."""
    return datetime.fromisoformat(text) if text else None
