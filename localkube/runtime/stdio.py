"""The standard streams of what the runtime starts: its own ends and those of the process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def streams(order: dict[str, Any], null: int) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Open the streams that an order asks for: ours, and the process's, which are closed at the end.

    Without a terminal: with one, the process opens it, and there are none. If the process cannot be started,
    ours are closed as well.

    Args:
        order: ``tty`` and ``stdin`` say what is wanted.
        null: What a process reads that gets no input.
    """
    ours: dict[str, int] = {}
    theirs: dict[str, int] = {}
    try:
        if not order.get("tty"):
            theirs["stdin"] = null
            for name in ("stdout", "stderr"):
                ours[name], theirs[name] = os.pipe2(os.O_CLOEXEC)
            if order.get("stdin"):
                theirs["stdin"], ours["stdin"] = os.pipe2(os.O_CLOEXEC)
        yield ours, theirs
    except BaseException:
        close(ours)
        raise
    finally:
        close(theirs, but=null)


def kept(ours: dict[str, int], terminal: int | None) -> dict[str, int]:
    """Return our ends of a process that was started: its terminal's, if it has opened one."""
    return ours if terminal is None else {"tty": terminal}


def close(descriptors: dict[str, int], *, but: int | None = None) -> None:
    """Close all descriptors, except one."""
    for descriptor in descriptors.values():
        if descriptor != but:
            os.close(descriptor)
