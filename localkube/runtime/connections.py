"""Connections of the runtime's clients: receives their requests, sends answers and events without blocking.

Messages that a slow client does not read yet are queued. Until its queue is empty, none of its requests is
served, so the queue stays short. Standard library only, for ``init.py``.
"""

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from localkube.runtime import messages
from localkube.runtime.messages import close_all


@dataclass(frozen=True)
class Reply:
    """An answer, the descriptors to send with it, and the descriptors to close once it is sent."""

    message: dict[str, Any] = field(default_factory=dict)
    fds: Sequence[int] = ()
    close: Sequence[int] = ()


class Connections:
    """All clients of a listening socket.

    Args:
        serve: Called with each request and its connection.
        dropped: Called when a client has disconnected.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        *,
        serve: Callable[[socket.socket, dict[str, Any]], None],
        dropped: Callable[[socket.socket], None],
    ) -> None:
        self._selector, self._serve, self._dropped = selector, serve, dropped
        self._listener = listener
        # The queued messages, with copies of their descriptors.
        self._unsent: dict[socket.socket, deque[tuple[dict[str, Any], list[int]]]] = {}
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def send(self, client: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, at once or when the client can receive; a disconnected client is skipped."""
        if client not in self._unsent:
            return
        unsent = self._unsent[client]
        try:
            if not unsent:
                messages.send(client, message, list(fds))
                return
        except BlockingIOError:
            self._selector.modify(client, selectors.EVENT_WRITE, lambda: self._flush(client))
        except ConnectionError:
            self._drop(client)
            return
        unsent.append((message, [os.dup(descriptor) for descriptor in fds]))

    def answer(self, requesters: Sequence[tuple[socket.socket, int]], reply: Reply) -> None:
        """Send a reply to clients with the numbers of their requests."""
        for client, number in requesters:
            self.send(client, {"answer": number, **reply.message}, reply.fds)
        close_all(reply.close)

    def send_all(self, message: dict[str, Any]) -> None:
        for client in list(self._unsent):
            self.send(client, message)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        self._unsent[client] = deque()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: socket.socket) -> None:
        try:
            received = messages.receive(client)
        except ConnectionError:
            received = None
        if received is None:
            self._drop(client)
            return
        request, fds = received
        close_all(fds)
        self._serve(client, request)

    def _flush(self, client: socket.socket) -> None:
        unsent = self._unsent[client]
        try:
            while unsent:
                messages.send(client, *unsent[0])
                close_all(unsent.popleft()[1])
        except BlockingIOError:
            return
        except ConnectionError:
            self._drop(client)
            return
        self._selector.modify(client, selectors.EVENT_READ, lambda: self._receive(client))

    def _drop(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        for _, fds in self._unsent.pop(client):
            close_all(fds)
        client.close()
        self._dropped(client)
