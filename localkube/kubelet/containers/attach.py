"""Clients attached to a container's output (``kubectl attach``).

A listener that does not keep up blocks the container's output, as a full pipe would; nothing is lost.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

FULL_BYTES = 1024 * 1024


class Attachments:
    """The listeners of one container.

    Args:
        hold: Called with True when a listener's buffer is full, with False when none is any more.
    """

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self._listeners: set[OutputListener] = set()
        self._held = False
        self._ended = False

    def listen(self) -> "OutputListener":
        """Add a listener for the output from now on; the caller closes it."""
        listener = OutputListener(self)
        self._listeners.add(listener)
        if self._ended:
            listener.end()
        return listener

    def feed(self, stream: str, data: bytes) -> None:
        for listener in self._listeners:
            listener.feed(stream, data)
        self.check_buffers()

    def end(self) -> None:
        """End the output of all listeners."""
        self._ended = True
        for listener in self._listeners:
            listener.end()

    def leave(self, listener: "OutputListener") -> None:
        self._listeners.discard(listener)
        self.check_buffers()

    def check_buffers(self) -> None:
        is_full = any(listener.size > FULL_BYTES for listener in self._listeners)
        if is_full != self._held:
            self._held = is_full
            self._hold(is_full)


class OutputListener:
    """One attached client, with its unread output."""

    def __init__(self, attachments: Attachments) -> None:
        self.size = 0
        self._attachments = attachments
        self._buffer: deque[tuple[str, bytes]] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    def feed(self, stream: str, data: bytes) -> None:
        self._buffer.append((stream, data))
        self.size += len(data)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def output(self) -> AsyncGenerator[tuple[str, bytes]]:
        """Yield the name of a stream and its data, until the container's output ends."""
        while True:
            while self._buffer:
                stream, data = self._buffer.popleft()
                self.size -= len(data)
                self._attachments.check_buffers()
                yield stream, data
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        self._attachments.leave(self)
