"""Python programs as syntax trees, also where threads read several at once."""

import ast
import threading

# https://github.com/python/cpython/issues/106905: in 3.11 two threads that parse count each other's depth.
_PARSER = threading.Lock()


def parse(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Parse a program, as ``ast.parse`` does.

    Raises:
        SyntaxError: As Python has it.
        ValueError: There is a null byte in it.
    """
    with _PARSER:
        return ast.parse(source, filename=filename)
