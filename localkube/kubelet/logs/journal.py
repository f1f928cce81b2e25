"""What has left a container's pipes and is not yet in its log, kept where a killed agent cannot lose it.

The kernel moves bytes from a pipe into the journal in one step, which a signal cannot split: at every moment
they are in the pipe, in the journal or in the log. The journal is a memory file that the runtime holds, as it
holds the pipes. Before the bytes come the size of the log and the time, so the next agent cuts the log back
to that size and writes what the one before was writing, with the same time: whoever has seen some of it sees
the same again.

Terminals cannot be moved so: what an agent reads from one is lost if it is killed before it has written it.
"""

import os
import struct
from dataclasses import dataclass

HEADER = struct.Struct("=QQB")  # size of the log's newest file, nanoseconds, stream
STREAMS = ("stdout", "stderr")
PIPE_BLOCK = 256 * 1024


@dataclass(frozen=True)
class Unwritten:
    """What an agent took from a pipe and may not have written in full.

    Attributes:
        size: The log's newest file before it.
        time: Nanoseconds since the epoch.
        stream: stdout or stderr.
        data: The bytes.
    """

    size: int
    time: int
    stream: str
    data: bytes


class Journal:
    """The journal of one container.

    Args:
        descriptor: Its memory file, owned from here on.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor

    def move(self, pipe: int, *, stream: str, size: int, time: int) -> bytes:
        """Move what a pipe holds into the journal, which is empty, and return it; nothing at the pipe's end.

        Raises:
            BlockingIOError: The pipe holds nothing now.
        """
        os.pwrite(self._file, HEADER.pack(size, time, STREAMS.index(stream)), 0)
        count = os.splice(pipe, self._file, PIPE_BLOCK, offset_dst=HEADER.size, flags=os.SPLICE_F_NONBLOCK)
        return os.pread(self._file, count, HEADER.size)

    def clear(self) -> None:
        """Forget what was moved: it is in the log."""
        os.ftruncate(self._file, 0)

    def unwritten(self) -> Unwritten | None:
        """Return what was moved and not cleared."""
        count = os.fstat(self._file).st_size - HEADER.size
        if count <= 0:
            return None
        size, time, stream = HEADER.unpack(os.pread(self._file, HEADER.size, 0))
        return Unwritten(size, time, STREAMS[stream], os.pread(self._file, count, HEADER.size))

    def close(self) -> None:
        os.close(self._file)
