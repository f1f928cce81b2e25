"""The runtime's end of its line to the forkserver, which forks containers where it can."""

import selectors
import socket
from typing import Any

from localkube.runtime import container, messages


class ForkserverClient:
    """A line to the forkserver: ``ready`` once the parent has imported what it has to, until it is lost."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._socket: socket.socket | None = None
        self.ready = False

    def open(self) -> socket.socket:
        """Return the parent's end of a new line."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self.ready = ours, False
        self._selector.register(ours, selectors.EVENT_READ, self._hear)
        return theirs

    def fork(self, order: dict[str, Any], given: dict[str, int]) -> container.Launched | None:
        """Let the parent start a container; return None if the parent is no longer there.

        Raises:
            LaunchError: It could not be started.
        """
        try:
            messages.send(self._socket, order | {"fds": list(given)}, list(given.values()))
            received = messages.receive(self._socket)
        except ConnectionError:
            received = None
        if received is None:
            self._lose()
            return None
        if "pid" in received[0]:
            return container.Launched(received[0]["pid"])
        raise container.LaunchError(received[0].get("stage", "exec"), received[0]["error"])

    def _hear(self) -> None:
        if self._socket is None:  # lost while an order was carried out
            return
        try:
            received = messages.receive(self._socket)
        except ConnectionError:
            received = None
        if received is None:
            self._lose()
        elif "ready" in received[0]:
            self.ready = True

    def _lose(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket, self.ready = None, False
