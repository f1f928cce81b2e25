"""Files of variables, for ``fileKeyRef``: a subset of the shell's syntax, in which every value is quoted.

The rules are those of the kubelet, down to where it stops reading: at the first assignment of the key.
Source: https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-via-file/
"""

import io
from collections.abc import Iterator

LINE_BYTES = 64 * 1024
BLANKS = b" \t"


class EnvFile:
    r"""One file, parsed once, and only as far as the requested keys require.

    Example:
        >>> EnvFile(b"# made\nWORLD='2' # nodes\n").value("WORLD")
        '2'
    """

    def __init__(self, text: bytes) -> None:
        self._assignments = _assignments(text)
        self._values: dict[bytes, bytes] = {}
        self._error: ValueError | None = None

    def value(self, key: str) -> str:
        """Find the value of ``key``, which is empty if the file does not assign it."""
        name = key.encode()
        while name not in self._values:
            if self._error:
                raise self._error
            try:
                assigned, value = next(self._assignments)
            except StopIteration:
                return ""
            except ValueError as error:
                self._error = error
                raise
            self._values.setdefault(assigned, value)
        return self._values[name].decode(errors="surrogateescape")


def _assignments(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    numbered = enumerate(map(_line, io.BytesIO(text)), 1)
    for number, line in numbered:
        assignment = line.lstrip(BLANKS)
        if not assignment or assignment.startswith(b"#"):
            continue
        name, equals, value = assignment.partition(b"=")
        if not equals:
            raise ValueError(f"invalid environment variable format at line {number}: missing '='")
        if not name.strip(BLANKS) or name != name.rstrip(BLANKS):
            raise ValueError(f"invalid environment variable format at line {number}: the name before '='")
        if value[:1] in (b" ", b"\t"):
            content = b""  # as in a shell, where a command would follow
        elif value.startswith(b"'"):
            content = _quoted(value[1:], numbered, number)
        else:
            raise ValueError(f"invalid environment variable format at line {number}: no single quote")
        yield name, content


def _quoted(line: bytes, numbered: Iterator[tuple[int, bytes]], number: int) -> bytes:
    """Read up to the closing quote, over several lines if necessary."""
    value, quote, after = line.partition(b"'")
    lines = [value]
    while not quote:
        try:
            number, line = next(numbered)
        except StopIteration:
            raise ValueError(
                f"invalid environment variable format at line {number}: unclosed quote"
            ) from None
        value, quote, after = line.partition(b"'")
        lines.append(value)
    after = after.lstrip(BLANKS)
    if after and not after.startswith(b"#"):
        raise ValueError(f"invalid environment variable format at line {number}: text after the quote")
    return b"\n".join(lines)


def _line(line: bytes) -> bytes:
    if len(line) > LINE_BYTES:
        raise ValueError("a line is too long")
    return line.removesuffix(b"\n").removesuffix(b"\r")
