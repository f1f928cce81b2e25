"""Files of variables, for ``fileKeyRef``: a subset of the shell's syntax, in which every value is quoted.

The rules are those of the kubelet, down to where it stops reading: at the first assignment of the key.
Source: https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-via-file/
"""

import io
from collections.abc import Iterator

LINE_BYTES = 64 * 1024
BLANKS = b" \t"


class EnvFileError(Exception):
    """A line is not an assignment of a quoted value."""


def parse_env_file(text: bytes, key: str) -> str:
    r"""Find the value of ``key``, which is empty if the file does not assign it.

    Example:
        >>> parse_env_file(b"# made\nWORLD='2' # nodes\n", "WORLD")
        '2'
    """
    numbered = enumerate(map(_line, io.BytesIO(text)), 1)
    for number, line in numbered:
        assignment = line.lstrip(BLANKS)
        if not assignment or assignment.startswith(b"#"):
            continue
        name, equals, value = assignment.partition(b"=")
        if not equals:
            raise EnvFileError(f"invalid environment variable format at line {number}: missing '='")
        if not name.strip(BLANKS) or name != name.rstrip(BLANKS):
            raise EnvFileError(f"invalid environment variable format at line {number}: the name before '='")
        if value[:1] in (b" ", b"\t"):
            content = b""  # as in a shell, where the next word is a command
        elif value.startswith(b"'"):
            content = _quoted(value[1:], numbered, number)
        else:
            raise EnvFileError(f"invalid environment variable format at line {number}: no single quote")
        if name == key.encode():
            return content.decode(errors="surrogateescape")
    return ""


def _quoted(rest: bytes, numbered: Iterator[tuple[int, bytes]], number: int) -> bytes:
    """Read on to the closing quote, over as many lines as it takes."""
    value, quote, after = rest.partition(b"'")
    while not quote:
        value += b"\n"
        try:
            number, rest = next(numbered)
        except StopIteration:
            raise EnvFileError(
                f"invalid environment variable format at line {number}: unclosed quote"
            ) from None
        more, quote, after = rest.partition(b"'")
        value += more
    after = after.lstrip(BLANKS)
    if after and not after.startswith(b"#"):
        raise EnvFileError(f"invalid environment variable format at line {number}: text after the quote")
    return value


def _line(line: bytes) -> bytes:
    if len(line) > LINE_BYTES:
        raise EnvFileError("a line is too long")
    return line.removesuffix(b"\n").removesuffix(b"\r")
