"""One start of a container, from its pipes to its end: output goes to the log, the exit becomes a fact.

The process itself belongs to the spawner; an agent that starts anew attaches to it and reads on.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from localkube.node.logs import LogFiles, LogWriter
from localkube.node.records import Exit

PIPE_BLOCK = 256 * 1024
DRAIN_SECONDS = 5


class Process:
    """A running or ended container, known by its ``identity``.

    Args:
        entry: The spawner's description: id, pid, started, status, ended.
        descriptors: The reading ends of stdout and stderr, owned from here on.
        log_path: Where the output goes.
        files: The agent's log files.
    """

    def __init__(
        self, entry: dict[str, Any], descriptors: list[int], *, log_path: Path, files: LogFiles
    ) -> None:
        self.identity: str = entry["id"]
        self.pid: int = entry["pid"]
        self.started: float = entry["started"]
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._writer = files.open(log_path)
        self._open = set(descriptors)
        self._drained = asyncio.Event()
        for stream, descriptor in zip(("stdout", "stderr"), descriptors, strict=True):
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, descriptor, stream, self._writer)
        if entry.get("status") is not None:
            self.exited(entry)

    def exited(self, entry: dict[str, Any]) -> None:
        """Take the spawner's word that the process has ended."""
        if self._exit.done():
            return
        code = os.waitstatus_to_exitcode(entry["status"])
        number = -code if code < 0 else None
        self._exit.set_result(Exit(128 + number if number else code, number, entry["ended"]))

    async def wait(self) -> Exit:
        """Return how it ended, after the last of its output has been logged."""
        result = await asyncio.shield(self._exit)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_SECONDS)
        self.close()
        return result

    @property
    def running(self) -> bool:
        return not self._exit.done()

    def _read(self, descriptor: int, stream: str, writer: LogWriter) -> None:
        try:
            data = os.read(descriptor, PIPE_BLOCK)
        except BlockingIOError:
            return
        if data:
            writer.feed(stream, data)
            return
        self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._open.discard(descriptor)
        if not self._open:
            self._writer.close()
            self._drained.set()

    def close(self) -> None:
        """Stop reading; harmless when repeated."""
        for descriptor in list(self._open):
            self._end(descriptor)
