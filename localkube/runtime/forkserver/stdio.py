"""The standard streams of a fork of the warm parent: new ones, on the container's descriptors.

The parent's own would have its encoding, its buffers and its buffering.
"""

import codecs
import io
import locale
import os
import sys
from collections.abc import Mapping
from typing import Any

from localkube.runtime.forkserver import native


def replace(env: Mapping[str, str], *, unbuffered: bool) -> None:
    """Open sys.stdin, stdout and stderr as the interpreter does at its start.

    Source: create_stdio in CPython's pylifecycle.c.

    Args:
        env: The new process's environment, for ``PYTHONIOENCODING``.
        unbuffered: As ``python -u``.
    """
    encoding, _, errors = env.get("PYTHONIOENCODING", "").partition(":")
    is_portable = locale.setlocale(locale.LC_CTYPE) in ("C.UTF-8", "C.utf8", "UTF-8")
    errors = errors or ("strict" if encoding or not is_portable else "surrogateescape")
    old = sys.stderr
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _open_stream(
            number,
            f"<{name}>",
            encoding=codecs.lookup(encoding or "utf-8").name,
            errors="backslashreplace" if name == "stderr" else errors,
            unbuffered=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if unbuffered:
        native.unbuffer_streams()
    _redirect_logging(old, sys.stderr)


def _open_stream(
    number: int, name: str, *, encoding: str, errors: str, unbuffered: bool
) -> io.TextIOWrapper | None:
    try:
        os.fstat(number)
    except OSError:
        return None
    mode = "r" if number == 0 else "w"
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = name
    interactive = raw.isatty()
    buffer: Any = raw
    if number == 0:
        buffer = io.BufferedReader(raw)
    elif not unbuffered:
        buffer = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=not unbuffered and (interactive or number == 2),
        write_through=unbuffered,
    )
    stream.mode = mode
    return stream


def _redirect_logging(old: Any, new: Any) -> None:
    """Let the handlers that imported modules made write to the new stream."""
    logging = sys.modules.get("logging")
    for reference in list(logging._handlerList) if logging else ():
        handler = reference()
        if getattr(handler, "stream", None) is old and isinstance(handler, logging.StreamHandler):
            handler.setStream(new)
