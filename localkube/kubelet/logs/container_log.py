"""Container logs on disk, in the CRI's format, rotated by size.

``LogWriter`` turns the bytes of a pipe into entries ``<RFC3339Nano> <stdout|stderr> <F|P> <content>``: F ends
a line, P is a partial line. A part is written as it arrives, so that a progress bar without newlines shows.

``0.log`` is the newest file of run 0; ``0.log.1``, ``0.log.2`` … are older ones. The kubelet compresses
rotated files and no longer serves them; here they remain readable, because a run's metrics are read from its
whole log.

``LogJournal`` makes output survive a killed kubelet. The kernel moves bytes from a pipe into the journal in
one system call, so at every moment they are in the pipe, the journal or the log. The journal is a memory file
that the runtime holds, and begins with the log's size and the time: the next kubelet truncates the log to
that size and writes the same bytes with the same time. Terminals cannot be spliced: output read from one is
lost if the kubelet is killed before it is written.
"""

import contextlib
import logging
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class LogLimits:
    """The size limits of one run's log; the kubelet's containerLogMaxSize and containerLogMaxFiles.

    Attributes:
        bytes: The size of one file, which is rotated at the next end of a line.
        files: Files of one run that are kept.
    """

    bytes: int = 10 * 1024 * 1024
    files: int = 5


def segments(path: Path) -> list[Path]:
    """List the files of the log whose newest file is ``path``, the oldest first."""
    names = []
    with contextlib.suppress(FileNotFoundError):
        names = [name for name in path.parent.iterdir() if name.name.startswith(path.name)]
    return sorted(names, key=lambda name: (name == path, _number(name)))


def rotate(path: Path, *, keep: int) -> None:
    """Rename the newest file, and remove the oldest ones so that ``keep`` renamed ones remain."""
    rotated = [name for name in segments(path) if name != path]
    number = _number(rotated[-1]) + 1 if rotated else 1
    path.rename(path.with_name(f"{path.name}.{number}"))
    for name in rotated[: max(0, len(rotated) + 1 - keep)]:
        name.unlink()


def forget_runs_before(path: Path) -> None:
    """Remove the logs of runs older than the previous one."""
    run = int(path.stem)
    if run >= 2:
        with contextlib.suppress(FileNotFoundError):
            for name in list(path.parent.iterdir()):
                if int(name.name.split(".")[0]) < run - 1:
                    name.unlink()


def _number(name: Path) -> int:
    return 0 if name.suffix == ".log" else int(name.suffix[1:])


HEADER = struct.Struct("=QQB")  # size of the log's newest file, nanoseconds, stream
STREAMS = ("stdout", "stderr")
PIPE_BLOCK = 256 * 1024


@dataclass(frozen=True)
class UnwrittenOutput:
    """Output that a killed kubelet took from a pipe and may not have written in full.

    Attributes:
        size: The size of the log's newest file before it.
    """

    size: int
    time: int
    stream: str
    data: bytes


class LogJournal:
    """The journal of one container's output."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor

    def move(self, pipe: int, *, stream: str, size: int, time: int) -> bytes:
        """Move a pipe's content into the empty journal and return it; empty at EOF."""
        os.pwrite(self._file, HEADER.pack(size, time, STREAMS.index(stream)), 0)
        count = os.splice(pipe, self._file, PIPE_BLOCK, offset_dst=HEADER.size, flags=os.SPLICE_F_NONBLOCK)
        return os.pread(self._file, count, HEADER.size)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)

    def unwritten(self) -> UnwrittenOutput | None:
        """Read output that was moved but not cleared."""
        count = os.fstat(self._file).st_size - HEADER.size
        if count <= 0:
            return None
        size, time, stream = HEADER.unpack(os.pread(self._file, HEADER.size, 0))
        return UnwrittenOutput(size, time, STREAMS[stream], os.pread(self._file, count, HEADER.size))

    def close(self) -> None:
        os.close(self._file)


log = logging.getLogger(__name__)

LONGEST = 16 * 1024
LONGEST_ENTRY = LONGEST + 64  # with its time, its stream and its tag
DEFAULT_LIMITS = LogLimits()


def timestamp(nanoseconds: int) -> bytes:
    """Format as RFC 3339 in UTC with nine decimals, so that bytes sort by time."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % rest


def parse_timestamp(text: str) -> bytes:
    """Convert an RFC 3339 time of any zone to the form of ``timestamp``."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return timestamp((since.days * 86400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000)


class LogWriter:
    """Append one container's output to its log; made by ``LogFiles.open``.

    On a full disk output is lost, which is reported once, and the container continues. The file always ends
    with a complete entry.

    ``path`` is the newest file; it is created with the first output. ``wrote`` is called after each write and
    after ``close``, ``lost`` with the first error.
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: LogLimits,
        wrote: Callable[[], None],
        lost: Callable[[OSError], None],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.closed = False
        self._path = path
        self._limits = limits
        self._wrote = wrote
        self._lost = lost
        self._clock = clock
        self._file: int | None = None
        self._size = 0
        self._failed = False
        self._journal: LogJournal | None = None

    def resume(self, journal: LogJournal) -> None:
        """Adopt a container's journal, and write the output that a killed kubelet has left in it."""
        self._journal = journal
        unwritten = journal.unwritten()
        if unwritten is None:
            return
        if self._ready():
            self._truncate(unwritten.size)
        self.feed(unwritten.stream, unwritten.data, nanoseconds=unwritten.time)

    def copy_pipe(self, stream: str, pipe: int) -> bytes:
        """Write a pipe's content and return it; empty at EOF.

        Raises:
            BlockingIOError: The pipe is empty.
        """
        now = self._clock()
        if self._journal and self._ready():
            data = self._journal.move(pipe, stream=stream, size=self._size, time=now)
        else:
            data = os.read(pipe, PIPE_BLOCK)
        self.feed(stream, data, nanoseconds=now)
        return data

    def feed(self, stream: str, data: bytes, *, nanoseconds: int | None = None) -> None:
        """Write what one system call has read from ``stream``, at ``nanoseconds``, by default now."""
        if not data or self.closed:
            return
        head = b"%s %s " % (timestamp(self._clock() if nanoseconds is None else nanoseconds), stream.encode())
        full, part = head + b"F ", head + b"P "
        end = data.rfind(b"\n") + 1
        lines, partial = data[:end], data[end:]
        entries: list[bytes] = []
        if lines and _fit(lines):
            entries += (full, lines[:-1].replace(b"\n", b"\n" + full), b"\n")
        elif lines:
            for line in lines[:-1].split(b"\n"):
                entries += (full, _cut(line, part, entries), b"\n")
        if partial:
            entries += (part, _cut(partial, part, entries), b"\n")
        try:
            self._write(b"".join(entries))
            # Before the rotation: the journal's content belongs to the newest file.
            self._clear_journal()
            self._wrote()
            # Even a line that never ends does not prevent the rotation.
            if self._size >= self._limits.bytes * (2 if partial else 1):
                self._rotate()
        except OSError as error:
            self._clear_journal()
            self._fail(error)

    def close(self) -> None:
        """Close the log, which ends its followers. Idempotent."""
        if not self.closed:
            self._close_file()
            if self._journal:
                self._journal.close()
                self._journal = None
            self.closed = True
            self._wrote()

    def _fail(self, error: OSError) -> None:
        level = logging.DEBUG if self._failed else logging.WARNING
        log.log(level, "output of a container is lost: %s: %s", self._path, error.strerror)
        if not self._failed:
            self._failed = True
            self._lost(error)

    def _clear_journal(self) -> None:
        if self._journal:
            self._journal.clear()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._open_file()
        assert self._file is not None
        before, view = self._size, memoryview(data)
        try:
            while view:
                written = os.write(self._file, view)
                self._size += written
                view = view[written:]
        except OSError:
            if self._size > before:
                self._truncate(before)
            raise

    def _ready(self) -> bool:
        """Open the file if necessary; False on failure."""
        try:
            if self._file is None:
                self._open_file()
        except OSError:  # reported when it is written to
            return False
        return True

    def _open_file(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._file = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._file).st_size
        # A kubelet that was killed may have left part of an entry, which was not read.
        start = max(0, self._size - LONGEST_ENTRY)
        tail = os.pread(self._file, LONGEST_ENTRY, start)
        if tail and not tail.endswith(b"\n"):
            self._truncate(start + tail.rfind(b"\n") + 1)

    def _truncate(self, size: int) -> None:
        """Truncate the newest file to ``size`` bytes."""
        if self._file is not None and size < self._size:
            os.ftruncate(self._file, size)
            self._size = size

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rotate(self) -> None:
        self._close_file()
        rotate(self._path, keep=self._limits.files - 1)


def _fit(lines: bytes) -> bool:
    """Check that no line is longer than an entry may be, without looking at each line."""
    start = 0
    while len(lines) - start > LONGEST + 1:
        end = lines.rfind(b"\n", start, start + LONGEST + 1)
        if end < 0:
            return False
        start = end + 1
    return True


def _cut(line: bytes, part: bytes, entries: list[bytes]) -> bytes:
    """Append the parts of a long line to ``entries`` and return its last piece."""
    start = 0
    while len(line) - start > LONGEST:
        entries += (part, line[start : start + LONGEST], b"\n")
        start += LONGEST
    return line[start:]
