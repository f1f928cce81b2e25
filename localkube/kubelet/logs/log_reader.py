"""Read logs: all of one, its last lines, the lines since a time, and new output.

The kubelet reads in its own thread, because logs are in the page cache. A follower waits for the next
write, so that containers never wait for readers.
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
    LogWriter,
    forget_runs_before,
    segments,
)


class LogFiles:
    """The open logs and their followers; one object for the whole kubelet.

    Attributes:
        on_loss: Called with a log's path and the error when output is lost for the first time.
    """

    def __init__(self, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.on_loss: Callable[[Path, OSError], None] = lambda path, error: None
        self._limits = limits
        self._writers: dict[Path, LogWriter] = {}
        self._followers: dict[Path, set[asyncio.Event]] = {}

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
                wrote=lambda: self._publish(path),
                lost=lambda error: self.on_loss(path, error),
            )
        return self._writers[path]

    def is_open(self, path: Path) -> bool:
        return path in self._writers

    @contextlib.contextmanager
    def follow(self, path: Path) -> Iterator[asyncio.Event]:
        """Yield an event that is set when ``path`` has grown or ended."""
        changed = asyncio.Event()
        self._followers.setdefault(path, set()).add(changed)
        try:
            yield changed
        finally:
            self._followers[path].discard(changed)
            if not self._followers[path]:
                del self._followers[path]

    def _publish(self, path: Path) -> None:
        if self._writers[path].closed:
            del self._writers[path]
        for changed in self._followers.get(path, ()):
            changed.set()


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
    with _Source(path, options) as source, files.follow(path) as changed:
        output = _Output(options)
        while output.needs_input:
            changed.clear()
            ended = not files.is_open(path)
            if block := source.read():
                if text := output.add(block):
                    yield text
            elif ended or not options.follow:
                return
            else:
                await changed.wait()


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

    def _find_newer(self) -> bool:
        """Open the files that were added after the last open one."""
        last = os.fstat(self._files[-1].fileno()) if self._files else None
        with contextlib.suppress(FileNotFoundError):
            if last and os.path.samestat(self._path.stat(), last):
                return False
        paths = segments(self._path)
        if last:
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
    def needs_input(self) -> bool:
        return self._remaining is None or self._remaining > 0

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
        if self._remaining is not None:
            text = text[: self._remaining]
            self._remaining -= len(text)
        return text

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
    """Get the content of a P entry; empty for a truncated one."""
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
