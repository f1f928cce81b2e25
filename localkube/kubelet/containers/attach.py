"""Those who listen to a container beside its log: ``kubectl attach``.

A listener that does not keep up holds the container back, as a full pipe would; nothing is lost.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

FULL_BYTES = 1024 * 1024


class Attachments:
    """The listeners of one container.

    Args:
        hold: Called with True when one of them has too much to take in, with False when all go on.
    """

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self._listeners: set[Listener] = set()
        self._held = False
        self._ended = False

    def listen(self) -> "Listener":
        """Return a new listener, to be closed; it hears what comes from now on."""
        listener = Listener(self)
        self._listeners.add(listener)
        if self._ended:
            listener.end()
        return listener

    def feed(self, stream: str, data: bytes) -> None:
        for listener in self._listeners:
            listener.hear(stream, data)
        self.weigh()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        for listener in self._listeners:
            listener.end()

    def leave(self, listener: "Listener") -> None:
        self._listeners.discard(listener)
        self.weigh()

    def weigh(self) -> None:
        held = any(listener.size > FULL_BYTES for listener in self._listeners)
        if held != self._held:
            self._held = held
            self._hold(held)


class Listener:
    """What one of them has still to take in."""

    def __init__(self, attachments: Attachments) -> None:
        self.size = 0
        self._attachments = attachments
        self._heard: deque[tuple[str, bytes]] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    def hear(self, stream: str, data: bytes) -> None:
        self._heard.append((stream, data))
        self.size += len(data)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield streams and what came from them, until the container's output ends."""
        while True:
            while self._heard:
                stream, data = self._heard.popleft()
                self.size -= len(data)
                self._attachments.weigh()
                yield stream, data
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        self._attachments.leave(self)
