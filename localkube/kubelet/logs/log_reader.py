"""Read logs: all of one, its last lines, the lines since a time, and new output.

The kubelet reads in its own thread, because logs are in the page cache. A follower that has caught up with
the file gets output directly from the writer; one that falls behind reads the file again, so that its memory
is bounded and containers never wait for readers.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from localkube.kubelet.logs.container_log import (
    DEFAULT_LIMITS,
    LogLimits,
    LogPosition,
    LogWriter,
    forget_runs_before,
    segments,
)

MAX_BYTES = 1024 * 1024


class LogSubscription:
    """A follower of one log; made by ``LogFiles.follow``."""

    def __init__(self) -> None:
        self.listens = False
        self._behind = False
        self._changed = asyncio.Event()
        self._texts: list[bytes] = []
        self._size = 0
        self._end: LogPosition | None = None

    def listen(self) -> None:
        """Receive output from now on; the caller has read the file to its end."""
        self.listens, self._behind, self._end = True, False, None
        self._changed.clear()

    def feed(self, text: bytes, end: LogPosition | None) -> None:
        """Receive written output; ``end`` is its position in the file, None if not all was written."""
        self._changed.set()
        if not self.listens or self._behind:
            return
        if end is None or self._size > MAX_BYTES:
            self._behind = True
        else:
            self._texts.append(text)
            self._size += len(text)
            self._end = end

    def drain(self) -> tuple[bytes, LogPosition | None]:
        """Return the output since the last call, and the position of its end (None before the first).

        Afterwards, ``listens`` is true if more will be delivered.
        """
        text = b"".join(self._texts)
        self._texts.clear()
        self._size = 0
        self._changed.clear()
        self.listens = not self._behind
        return text, self._end

    def clear(self) -> None:
        self._changed.clear()

    async def wait(self) -> None:
        """Wait until the log has grown or ended since ``clear``, ``listen`` or ``drain``."""
        await self._changed.wait()


class LogFiles:
    """The open logs and their followers; one object for the whole kubelet.

    Attributes:
        on_loss: Called with a log's path and the error when output is lost for the first time.
    """

    def __init__(self, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.on_loss: Callable[[Path, OSError], None] = lambda path, error: None
        self._limits = limits
        self._writers: dict[Path, LogWriter] = {}
        self._followers: dict[Path, set[LogSubscription]] = {}

    def open(self, path: Path) -> LogWriter:
        """Open the writer of ``path``, once.

        Open it before the container starts or is reattached, and close it when both pipes have ended: a log
        without a writer counts as ended. Of a container's runs, this one and the previous one are kept.
        """
        if path not in self._writers:
            forget_runs_before(path)
            self._writers[path] = LogWriter(
                path,
                limits=self._limits,
                wrote=lambda text, end: self._publish(path, text, end),
                lost=lambda error: self.on_loss(path, error),
            )
        return self._writers[path]

    def is_open(self, path: Path) -> bool:
        return path in self._writers

    @contextlib.contextmanager
    def follow(self, path: Path) -> Iterator[LogSubscription]:
        """Register a follower of ``path``."""
        follower = LogSubscription()
        self._followers.setdefault(path, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[path].discard(follower)
            if not self._followers[path]:
                del self._followers[path]

    def _publish(self, path: Path, text: bytes, end: LogPosition | None) -> None:
        writer = self._writers.get(path)
        if writer and writer.closed:
            del self._writers[path]
        for follower in self._followers.get(path, ()):
            follower.feed(text, end)


BLOCK = 256 * 1024
# ``<30 characters of time> <stdout|stderr> <F|P> ``: the prefix of the content has a fixed length.
CONTENT, TAG = 40, slice(37, 40)
FULL, PART = b" F ", b" P "


@dataclass(frozen=True)
class LogOptions:
    """The fields of ``v1.PodLogOptions``.

    Args:
        tail_lines: Only this number of lines from the end; None for all.
        since: Only output written at this ``timestamp`` or later.
        timestamps: Prefix each line with the time of its first part.
        limit_bytes: Stop after this number of bytes, even in the middle of a line.
    """

    follow: bool = False
    tail_lines: int | None = None
    since: bytes = b""
    timestamps: bool = False
    limit_bytes: int | None = None


async def read_log(path: Path, *, files: LogFiles, options: LogOptions) -> AsyncGenerator[bytes]:
    """Yield the container's output, byte for byte.

    Without ``follow`` it stops at the current end. Close the generator (``contextlib.aclosing``) to stop
    following. A log that was never written is empty.
    """
    with _Source(path, options) as source, files.follow(path) as follower:
        output = _Output(options)
        while output.wants_more:
            if follower.listens:
                await follower.wait()
                text, end = follower.drain()
                if not follower.listens and end:
                    source.seek(end)
                if text := output.limited(text):
                    yield text
                continue
            follower.clear()
            ended = not files.is_open(path)
            if block := source.read():
                if text := output.add(block):
                    yield text
            elif ended or not options.follow:
                return
            elif output.is_plain:
                follower.listen()
            else:
                await follower.wait()


class _Source:
    """The entries of a log, read from its files one after the other, including new ones."""

    def __init__(self, path: Path, options: LogOptions) -> None:
        self._path = path
        self._follow = options.follow
        self._files: deque[FileIO] = deque(FileIO(name) for name in segments(path))
        self._end = os.fstat(self._files[-1].fileno()).st_size if self._files else 0
        if options.tail_lines is not None:
            self._seek_tail(options.tail_lines)

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *exc: object) -> None:
        for file in self._files:
            file.close()

    def read(self) -> bytes:
        """Read the next block; empty if there is none yet."""
        while self._files:
            file, is_last = self._files[0], len(self._files) == 1
            size = BLOCK if self._follow or not is_last else max(0, min(BLOCK, self._end - file.tell()))
            if block := file.read(size):
                return block
            if is_last and not (self._follow and self._find_newer()):
                return b""
            self._files.popleft().close()
        if self._follow and self._find_newer():
            return self.read()
        return b""

    def seek(self, position: LogPosition) -> None:
        """Continue at a position; in the oldest file if that position's file was removed."""
        inode, offset = position
        for file in self._files:
            file.close()
        self._files = deque(FileIO(name) for name in segments(self._path))
        inodes = [os.fstat(file.fileno()).st_ino for file in self._files]
        if inode in inodes:
            for _ in range(inodes.index(inode)):
                self._files.popleft().close()
            self._files[0].seek(offset)

    def _find_newer(self) -> bool:
        """Open the files that were added after the last open one."""
        paths = segments(self._path)
        if self._files:
            last = os.fstat(self._files[-1].fileno())
            same = [number for number, name in enumerate(paths) if os.path.samestat(name.stat(), last)]
            paths = paths[same[0] + 1 :] if same else paths
        self._files += [FileIO(name) for name in paths]
        return bool(paths)

    def _seek_tail(self, lines: int) -> None:
        """Seek to the last ``lines`` lines, and close the files before them."""
        files, self._files = self._files, deque()
        while files:
            file = files.pop()
            offset, count = tail_start(file, lines)
            file.seek(offset)
            self._files.appendleft(file)
            lines -= count
            if offset > 0 or lines == 0:
                break
        for file in files:
            file.close()


class _Output:
    """Converts blocks of entries into the container's output."""

    def __init__(self, options: LogOptions) -> None:
        self._since = options.since
        self._timestamps = options.timestamps
        self._remaining = options.limit_bytes
        self._incomplete = b""
        self._at_line_start = True
        self._in_older_line = False

    @property
    def wants_more(self) -> bool:
        return self._remaining is None or self._remaining > 0

    @property
    def is_plain(self) -> bool:
        """Whether the next output is passed on unchanged."""
        return not (self._timestamps or self._since or self._incomplete)

    def limited(self, text: bytes) -> bytes:
        """Apply ``limit_bytes``."""
        if self._remaining is not None:
            text = text[: self._remaining]
            self._remaining -= len(text)
        return text

    def add(self, block: bytes) -> bytes:
        """Convert a block of entries."""
        end = block.rfind(b"\n") + 1
        if not end:
            self._incomplete += block
            return b""
        entries, self._incomplete = self._incomplete + block[:end], block[end:]
        if self._since or self._timestamps:
            text = self._one_by_one(entries)
        else:
            text = b"".join(
                [
                    entry[CONTENT:] + b"\n" if entry[TAG] == FULL else _part(entry)
                    for entry in entries.split(b"\n")
                ]
            )
        return self.limited(text)

    def _one_by_one(self, block: bytes) -> bytes:
        entries = block.split(b"\n")
        entries.pop()
        pieces: list[bytes] = []
        for entry in entries:
            fields = entry.split(b" ", 3)
            if len(fields) < 4:
                continue
            if self._since and (self._in_older_line or fields[0] < self._since):
                # A line is as old as its first part.
                self._in_older_line = fields[2] == b"P"
                continue
            self._since = b""  # what follows is newer
            if self._timestamps and self._at_line_start:
                pieces += (fields[0], b" ")
            pieces.append(fields[3])
            self._at_line_start = fields[2] == b"F"
            if self._at_line_start:
                pieces.append(b"\n")
        return b"".join(pieces)


def _part(entry: bytes) -> bytes:
    """The content of a P entry; empty for a truncated one."""
    return entry[CONTENT:] if entry[TAG] == PART else b""


def tail_start(file: FileIO, lines: int) -> tuple[int, int]:
    """Find the offset of the last ``lines`` lines of a log file, and count the lines from there.

    The parts of a line count as one line, and so does an incomplete last line.
    """
    position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return position, 0
    count, newest, carry = 0, True, b""
    while position > 0:
        size = min(BLOCK, position)
        position -= size
        file.seek(position)
        entries = (file.read(size) + carry).split(b"\n")
        carry = entries[0]
        offset = position + sum(map(len, entries)) + len(entries) - 1
        for entry in reversed(entries[1:]):
            offset -= len(entry)
            tag = entry.split(b" ", 3)[2:3]
            if tag == [b"F"] or (tag and newest):
                if count == lines:
                    return offset + len(entry) + 1, count
                count += 1
            newest = newest and not tag
            offset -= 1
    first = carry.split(b" ", 3)[2:3]
    if first == [b"F"] or (first and newest):
        if count == lines:
            return len(carry) + 1, count
        count += 1
    return 0, count
