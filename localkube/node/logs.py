"""What containers write, kept on disk in the CRI's log format, and read back exactly as it was written.

``LogWriter`` turns the bytes of a pipe into entries ``<RFC3339Nano> <stdout|stderr> <F|P> <content>``: F ends
a line, P is a part of one. A part is written the moment it arrives, so that a killed agent loses nothing and
a progress bar without newlines is seen. ``LogFiles`` knows which files are still written, and wakes their
followers. ``read_log`` is the other direction: tail, since, limit, follow.

Not here: HTTP (``server.py``), the pipes (the agent feeds what it reads from them), rotation.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

LONGEST = 16 * 1024
BLOCK = 256 * 1024


def timestamp(nanoseconds: int) -> bytes:
    """Return a time as RFC 3339 in UTC with nine decimals, so that the order of the bytes is that of time."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % rest


def parse_timestamp(text: str) -> bytes:
    """Return an RFC 3339 time of any zone in the form of ``timestamp``.

    Raises:
        ValueError: The text is no time, or has no zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return timestamp((since.days * 86400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000)


class LogWriter:
    """Append one container's output to one file; made by ``LogFiles.open``.

    A full disk loses output, says so once in the agent's log, and does not disturb the container.

    Args:
        path: The file. It is created, with its parents, for this user alone, or continued.
        changed: Called after each write and after the close.
        clock: Nanoseconds since the epoch.
    """

    def __init__(
        self, path: Path, *, changed: Callable[[], None], clock: Callable[[], int] = time.time_ns
    ) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._changed = changed
        self._clock = clock
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._full = False

    def feed(self, stream: str, data: bytes) -> None:
        """Write what was just read from ``stream`` (stdout or stderr), all of it, in one system call."""
        if not data or self.closed:
            return
        head = b"%s %s " % (timestamp(self._clock()), stream.encode())
        full, part = head + b"F ", head + b"P "
        lines = data.split(b"\n")
        rest = lines.pop()
        entries = [b"\n"] if self._torn else []
        if lines and max(map(len, lines)) <= LONGEST:
            entries += (full, (b"\n" + full).join(lines), b"\n")
        else:
            for line in lines:
                entries += (full, _cut(line, part, entries), b"\n")
        if rest:
            entries += (part, _cut(rest, part, entries), b"\n")
        self._write(b"".join(entries))
        self._changed()

    def close(self) -> None:
        """End the file: followers get the rest and finish. Harmless when repeated."""
        if not self.closed:
            os.close(self._file)
            self._file = -1
            self._changed()

    @property
    def closed(self) -> bool:
        return self._file < 0

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                self._torn = True
                view = view[os.write(self._file, view) :]
            self._torn = self._full = False
        except OSError as error:
            log.log(
                logging.DEBUG if self._full else logging.WARNING,
                "output of a container is lost: %s: %s",
                self._path,
                error.strerror,
            )
            self._full = True


def _cut(line: bytes, part: bytes, entries: list[bytes]) -> bytes:
    """Add the parts of a long line to ``entries``, and return its last piece."""
    start = 0
    while len(line) - start > LONGEST:
        entries += (part, line[start : start + LONGEST], b"\n")
        start += LONGEST
    return line[start:]


class LogFiles:
    """The log files that are being written, and those who wait for more; one object for the whole agent.

    Example:
        >>> writer = files.open(pods / uid / "logs" / "trainer" / "0.log")
        >>> writer.feed("stdout", b"step 1\\n")
        >>> writer.close()
    """

    def __init__(self) -> None:
        self._writers: dict[Path, LogWriter] = {}
        self._followers: dict[Path, set[asyncio.Event]] = {}

    def open(self, path: Path) -> LogWriter:
        """Return the writer of ``path``: a new one, or the one that is open already.

        Open it before the container starts, or when a running one is adopted; close it when both its pipes
        have ended. A file without an open writer counts as ended: its followers finish.
        """
        if path not in self._writers:
            self._writers[path] = LogWriter(path, changed=lambda: self._notify(path))
        return self._writers[path]

    def is_open(self, path: Path) -> bool:
        """Tell whether more can come."""
        return path in self._writers

    @contextlib.contextmanager
    def follow(self, path: Path) -> Iterator[asyncio.Event]:
        """Give an event that is set whenever ``path`` has grown or ended."""
        event = asyncio.Event()
        self._followers.setdefault(path, set()).add(event)
        try:
            yield event
        finally:
            self._followers[path].discard(event)
            if not self._followers[path]:
                del self._followers[path]

    def _notify(self, path: Path) -> None:
        writer = self._writers.get(path)
        if writer and writer.closed:
            del self._writers[path]
        for event in self._followers.get(path, ()):
            event.set()


@dataclass(frozen=True)
class LogOptions:
    """What of a log is wanted; the fields of ``v1.PodLogOptions``.

    Args:
        follow: Wait for more until the container has ended.
        tail_lines: Only so many lines of the end; all of them if None.
        since: Only what was written at this ``timestamp`` or later.
        timestamps: Begin each line with the time of its first part.
        limit_bytes: Stop after so many bytes, be it in the middle of a line.
    """

    follow: bool = False
    tail_lines: int | None = None
    since: bytes = b""
    timestamps: bool = False
    limit_bytes: int | None = None


async def read_log(path: Path, *, files: LogFiles, options: LogOptions) -> AsyncIterator[bytes]:
    """Yield what the container wrote to both streams, byte for byte, in blocks.

    A last line without a newline comes without one. Without ``follow`` it ends at what is there now. Close
    the generator (``contextlib.aclosing``) to stop following.

    Raises:
        FileNotFoundError: Nothing was ever written there.
    """
    # Logs are in the page cache: a thread would cost more than the read.
    with path.open("rb", buffering=0) as file, files.follow(path) as changed:  # noqa: ASYNC230
        end = None if options.follow else os.fstat(file.fileno()).st_size
        if options.tail_lines is not None:
            file.seek(tail_start(file, options.tail_lines))
        output = _Output(options)
        while output.wants_more:
            changed.clear()
            ended = not files.is_open(path)
            block = file.read(BLOCK if end is None else min(BLOCK, end - file.tell()))
            if block:
                text = output.add(block)
                if text:
                    yield text
            elif ended or not options.follow:
                return
            else:
                await changed.wait()


class _Output:
    """Turns blocks of entries into the text that the container wrote."""

    def __init__(self, options: LogOptions) -> None:
        self._since = options.since
        self._timestamps = options.timestamps
        self._left = options.limit_bytes
        self._incomplete = b""
        self._at_line_start = True

    @property
    def wants_more(self) -> bool:
        return self._left is None or self._left > 0

    def add(self, block: bytes) -> bytes:
        entries = (self._incomplete + block).split(b"\n")
        self._incomplete = entries.pop()
        pieces: list[bytes] = []
        for entry in entries:
            fields = entry.split(b" ", 3)
            if len(fields) < 4 or fields[0] < self._since:
                continue
            if self._timestamps and self._at_line_start:
                pieces += (fields[0], b" ")
            pieces.append(fields[3])
            self._at_line_start = fields[2] == b"F"
            if self._at_line_start:
                pieces.append(b"\n")
        text = b"".join(pieces)
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text


def tail_start(file, lines: int) -> int:
    """Return the offset of the entry with which the last ``lines`` lines of the output begin.

    Args:
        file: A log file, open for reading bytes.
        lines: 0 or more. The parts of a line count as one, and so does a last line without its end.
    """
    position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return position
    found, newest, carry = 0, True, b""
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
                if found == lines:
                    return offset + len(entry) + 1
                found += 1
            newest = newest and not tag
            offset -= 1
    first = carry.split(b" ", 3)[2:3]
    return len(carry) + 1 if first == [b"F"] and found == lines else 0
