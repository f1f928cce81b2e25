"""What containers write, kept on disk in the CRI's log format, and bounded there.

``LogWriter`` turns the bytes of a pipe into entries ``<RFC3339Nano> <stdout|stderr> <F|P> <content>``: F ends
a line, P is a part of one. A part is written the moment it arrives, so that a progress bar without newlines
is seen. What a killed agent had taken from a pipe, the next one writes (``journal.py``). A log that has grown
goes on in a new file (``segments.py``). ``LogFiles`` knows which logs are still written, and who follows them
(``following.py``).

Not here: HTTP (``server.py``), when a pipe is read (``containers/processes.py``), reading (``reading.py``).
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from localkube.kubelet.logs import segments
from localkube.kubelet.logs.follower import Follower, Place
from localkube.kubelet.logs.journal import PIPE_BLOCK, Journal
from localkube.kubelet.logs.segments import LogLimits

log = logging.getLogger(__name__)

LONGEST = 16 * 1024
LONGEST_ENTRY = LONGEST + 64  # with its time, its stream and its tag
DEFAULT_LIMITS = LogLimits()


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
    """Append one container's output to one log; made by ``LogFiles.open``.

    A full disk loses output, which is told once, and does not disturb the container. The file is made when
    there is something to write, and always ends with a whole entry for those who read it.

    Args:
        path: The newest file. It is made, with its directory, for this user alone, or continued.
        limits: How much is kept.
        wrote: Called after each write with the text and where its entries end, and with nothing and None
            when less was written than that, and after the close.
        lost: Called with the first error.
        clock: Nanoseconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: LogLimits,
        wrote: Callable[[bytes, Place | None], None],
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
        self._inode = 0
        self._size = 0
        self._failed = False
        self._journal: Journal | None = None

    def resume(self, journal: Journal) -> None:
        """Take a container's journal, and write what an agent that was killed has left in it."""
        self._journal = journal
        left = journal.unwritten()
        if left is None:
            return
        if self._ready():
            self._cut_back(left.size)
        self.feed(left.stream, left.data, at=left.time)

    def take(self, stream: str, pipe: int) -> bytes:
        """Write what a pipe holds, and return it; nothing at the pipe's end.

        Raises:
            BlockingIOError: It holds nothing now.
            OSError: It cannot be read.
        """
        now = self._clock()
        if self._journal and self._ready():
            data = self._journal.move(pipe, stream=stream, size=self._size, time=now)
        else:
            data = os.read(pipe, PIPE_BLOCK)
        self.feed(stream, data, at=now)
        return data

    def feed(self, stream: str, data: bytes, *, at: int | None = None) -> None:
        """Write what was just read from ``stream`` (stdout or stderr), all of it, in one system call.

        Args:
            stream: stdout or stderr.
            data: What was read.
            at: When, in nanoseconds since the epoch; now by default.
        """
        if not data or self.closed:
            return
        head = b"%s %s " % (timestamp(self._clock() if at is None else at), stream.encode())
        full, part = head + b"F ", head + b"P "
        end = data.rfind(b"\n") + 1
        lines, rest = data[:end], data[end:]
        entries = []
        if lines and _fit(lines):
            entries += (full, lines[:-1].replace(b"\n", b"\n" + full), b"\n")
        elif lines:
            for line in lines[:-1].split(b"\n"):
                entries += (full, _cut(line, part, entries), b"\n")
        if rest:
            entries += (part, _cut(rest, part, entries), b"\n")
        try:
            self._write(b"".join(entries))
            # Before the rotation: what is in the journal belongs to the newest file.
            self._clear_journal()
            self._wrote(data, (self._inode, self._size))
            # A line that never ends does not keep the file from ending.
            if self._size >= self._limits.bytes * (2 if rest else 1):
                self._rotate()
        except OSError as error:
            self._clear_journal()
            self._fail(error)

    def close(self) -> None:
        """End the log: followers get the rest and finish. Harmless when repeated."""
        if not self.closed:
            self._close_file()
            if self._journal:
                self._journal.close()
                self._journal = None
            self.closed = True
            self._wrote(b"", None)

    def _fail(self, error: OSError) -> None:
        level = logging.DEBUG if self._failed else logging.WARNING
        log.log(level, "output of a container is lost: %s: %s", self._path, error.strerror)
        if not self._failed:
            self._failed = True
            self._lost(error)
        self._wrote(b"", None)

    def _clear_journal(self) -> None:
        if self._journal:
            self._journal.clear()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._open_file()
        before, view = self._size, memoryview(data)
        try:
            while view:
                written = os.write(self._file, view)
                self._size += written
                view = view[written:]
        except OSError:
            if self._size > before:
                self._cut_back(before)
            raise

    def _ready(self) -> bool:
        """Open the file, and return whether it can be."""
        try:
            if self._file is None:
                self._open_file()
        except OSError:  # told when it is written to
            return False
        return True

    def _open_file(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._file = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, flags, 0o600)
        status = os.fstat(self._file)
        self._inode, self._size = status.st_ino, status.st_size
        # An agent that was killed may have left a part of an entry, which nobody has read.
        start = max(0, self._size - LONGEST_ENTRY)
        tail = os.pread(self._file, LONGEST_ENTRY, start)
        if tail and not tail.endswith(b"\n"):
            self._cut_back(start + tail.rfind(b"\n") + 1)

    def _cut_back(self, size: int) -> None:
        """Remove what is behind the first ``size`` bytes of the newest file."""
        if size < self._size:
            os.ftruncate(self._file, size)
            self._size = size

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rotate(self) -> None:
        self._close_file()
        segments.rotate(self._path, keep=self._limits.files - 1)


def _fit(lines: bytes) -> bool:
    """Tell whether no line is longer than an entry may be, without looking at each of them."""
    start = 0
    while len(lines) - start > LONGEST + 1:
        end = lines.rfind(b"\n", start, start + LONGEST + 1)
        if end < 0:
            return False
        start = end + 1
    return True


def _cut(line: bytes, part: bytes, entries: list[bytes]) -> bytes:
    """Add the parts of a long line to ``entries``, and return its last piece."""
    start = 0
    while len(line) - start > LONGEST:
        entries += (part, line[start : start + LONGEST], b"\n")
        start += LONGEST
    return line[start:]


class LogFiles:
    """The logs that are being written, and those who wait for more; one object for the whole agent.

    Args:
        limits: How much is kept of each.

    Attributes:
        on_loss: Called with a log's path and the error when output is lost for the first time.

    Example:
        >>> writer = files.open(pods / uid / "logs" / "trainer" / "0.log")
        >>> writer.feed("stdout", b"step 1\\n")
        >>> writer.close()
    """

    def __init__(self, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.on_loss: Callable[[Path, OSError], None] = lambda path, error: None
        self._limits = limits
        self._writers: dict[Path, LogWriter] = {}
        self._followers: dict[Path, set[Follower]] = {}

    def open(self, path: Path) -> LogWriter:
        """Return the writer of ``path``: a new one, or the one that is open already.

        Open it before the container starts, or when a running one is adopted; close it when both its pipes
        have ended. A log without an open writer counts as ended: its followers finish. Of a container's
        runs, this one and the one before are kept.
        """
        if path not in self._writers:
            segments.forget_runs_before(path)
            self._writers[path] = LogWriter(
                path,
                limits=self._limits,
                wrote=lambda text, end: self._tell(path, text, end),
                lost=lambda error: self.on_loss(path, error),
            )
        return self._writers[path]

    def is_open(self, path: Path) -> bool:
        """Tell whether more can come."""
        return path in self._writers

    @contextlib.contextmanager
    def follow(self, path: Path) -> Iterator[Follower]:
        """Give what learns whenever ``path`` has grown or ended."""
        follower = Follower()
        self._followers.setdefault(path, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[path].discard(follower)
            if not self._followers[path]:
                del self._followers[path]

    def _tell(self, path: Path, text: bytes, end: Place | None) -> None:
        writer = self._writers.get(path)
        if writer and writer.closed:
            del self._writers[path]
        for follower in self._followers.get(path, ()):
            follower.hear(text, end)
