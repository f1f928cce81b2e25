"""Read and write pipes and terminals from asyncio, with backpressure.

``asyncio``'s own transports lose a terminal's buffered output when its last program ends, with EIO.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import struct
import termios
from collections.abc import AsyncGenerator, Callable
from typing import Any

BLOCK = 64 * 1024


async def blocks(descriptor: int, *, size: int = BLOCK) -> AsyncGenerator[bytes]:
    """Yield blocks of data until EOF, and close the descriptor; close the generator to stop earlier."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    try:
        while True:
            try:
                data = os.read(descriptor, size)
            except BlockingIOError:
                await _ready(loop.add_reader, loop.remove_reader, descriptor)
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return
            if not data:
                return
            yield data
    finally:
        os.close(descriptor)


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, waiting while the buffer is full.

    Raises:
        BrokenPipeError: The reader has closed.
    """
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await _ready(loop.add_writer, loop.remove_writer, descriptor)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error


def resize(master: int, *, columns: int, rows: int) -> None:
    """Set the size of a terminal; the kernel sends its foreground processes SIGWINCH."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


async def _ready(add: Callable[..., Any], remove: Callable[..., Any], descriptor: int) -> None:
    ready = asyncio.get_running_loop().create_future()
    # The loop watches a number, not a file: a copy lets a terminal be read and written at the same time.
    watched = os.dup(descriptor)
    add(watched, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(watched)
        with contextlib.suppress(OSError):
            os.close(watched)
