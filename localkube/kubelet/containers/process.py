"""One start of a container: its output goes to the log and to ``kubectl attach``, until its exit.

The process itself belongs to the runtime; a restarted kubelet attaches to it, and loses no output that the
previous one had read (``LogJournal``).
"""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

from localkube.kubelet.containers.async_io import resize, write_all
from localkube.kubelet.containers.attach import Attachments, OutputListener
from localkube.kubelet.logs.container_log import LogJournal
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.status.container_state import ContainerExit

DRAIN_SECONDS = 5


class Process:
    """A running or terminated container.

    Args:
        entry: The runtime's description: id, pid, started, status, ended, streams, forked_from.
        descriptors: Our ends of its streams, owned from here on.
    """

    def __init__(
        self, entry: dict[str, Any], descriptors: list[int], *, log_path: Path, files: LogFiles
    ) -> None:
        self.identity: str = entry["id"]
        self.pid: int = entry["pid"]
        self.started: float = entry["started"]
        self.forked_from: int = entry["forked_from"]
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[ContainerExit] = self._loop.create_future()
        self._writer = files.open(log_path)
        self._drained = asyncio.Event()
        self._attachments = Attachments(self._hold)
        streams = dict(zip(entry["streams"], descriptors, strict=True))
        self._terminal: int | None = streams.pop("tty", None)
        if self._terminal is not None:
            streams = {"stdout": self._terminal, "stdin": os.dup(self._terminal)}
        self._input: int | None = streams.pop("stdin", None)
        if journal := streams.pop("journal", None):
            self._writer.resume(LogJournal(journal))
        self._open = {descriptor: name for name, descriptor in streams.items()}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._hold(False)
        if entry.get("status") is not None:
            self.set_exit(entry)

    def set_exit(self, entry: dict[str, Any]) -> None:
        """Record the exit that the runtime reports."""
        if self._exit.done():
            return
        code = os.waitstatus_to_exitcode(entry["status"])
        number = -code if code < 0 else None
        self._exit.set_result(ContainerExit(128 + number if number else code, number, entry["ended"]))

    async def wait(self) -> ContainerExit:
        """Wait for its exit, and until the last of its output has been logged."""
        result = await asyncio.shield(self._exit)
        try:
            await asyncio.wait_for(self._drained.wait(), DRAIN_SECONDS)
        except TimeoutError:  # another process holds its pipes open; their data is the container's
            for descriptor in list(self._open):
                self._read(descriptor)
        self.close()
        return result

    @property
    def running(self) -> bool:
        return not self._exit.done()

    # Attached clients.

    def listen(self) -> OutputListener:
        """Attach to the output from now on; the caller closes the listener."""
        return self._attachments.listen()

    async def write(self, data: bytes) -> None:
        """Write to its standard input, if it is open; unread input is lost."""
        if self._input is not None:
            with contextlib.suppress(BrokenPipeError):
                await write_all(self._input, data)

    def end_input(self) -> None:
        """Close our end of its stdin; the runtime has another."""
        if self._input is not None:
            os.close(self._input)
            self._input = None

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None and self._terminal in self._open:
            resize(self._terminal, columns=columns, rows=rows)

    # Its output.

    def _hold(self, paused: bool) -> None:
        for descriptor in self._open:
            if paused:
                self._loop.remove_reader(descriptor)
            else:
                self._loop.add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        try:
            data = self._writer.copy_pipe(self._open[descriptor], descriptor)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # the end of a terminal
                raise
            data = b""
        if not data:
            self._end(descriptor)
            return
        self._attachments.feed(self._open[descriptor], data)

    def _end(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        del self._open[descriptor]
        if not self._open:
            self._writer.close()
            self._attachments.end()
            self._drained.set()

    def close(self) -> None:
        """Stop reading; idempotent."""
        for descriptor in list(self._open):
            self._end(descriptor)
        self.end_input()
