"""The forkserver: a process that has imported torch and forks containers, which start in milliseconds.

Here is the runtime's end of the connection to it, standard library only; the process itself is ``server.py``.
"""

import selectors
import socket
from typing import Any

from localkube.runtime import container, messages


class ForkserverClient:
    """A connection to the forkserver; ``ready`` from when it has imported its modules until it ends."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._socket: socket.socket | None = None
        self.ready = False

    def connect(self) -> socket.socket:
        """Open a new connection; returns the forkserver's end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self.ready = ours, False
        self._selector.register(ours, selectors.EVENT_READ, self._readable)
        return theirs

    def start(self, request: dict[str, Any], fds: dict[str, int]) -> container.StartedProcess | None:
        """Start a container; None if the forkserver has ended.

        Raises:
            ContainerStartError: It could not be started.
        """
        try:
            messages.send(self._socket, request | {"fds": list(fds)}, list(fds.values()))
            received = messages.receive(self._socket)
        except ConnectionError:
            received = None
        if received is None:
            self._close()
            return None
        answer = received[0]
        if "pid" in answer:
            return container.StartedProcess(answer["pid"])
        raise container.ContainerStartError(answer.get("stage", "exec"), answer["error"])

    def _readable(self) -> None:
        if self._socket is None:  # closed while a request was carried out
            return
        try:
            received = messages.receive(self._socket)
        except ConnectionError:
            received = None
        if received is None:
            self._close()
        elif "ready" in received[0]:
            self.ready = True

    def _close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket, self.ready = None, False
