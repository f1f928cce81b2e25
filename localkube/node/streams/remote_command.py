"""The WebSocket protocol of ``kubectl exec`` and ``attach``: one byte says which stream a message belongs to.

Version 5 is kubectl's, version 4 that of client libraries; they differ in the message that ends the input.
The end of a command is a v1.Status on the error channel. Source: k8s.io/apiserver/pkg/util/proxy.

What the streams are connected to is the caller's; the routes are in ``routes.py``.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import WSMsgType, web

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CLOSE_SECONDS = 1.0
SUCCESS = {"metadata": {}, "status": "Success"}


@dataclass(frozen=True)
class Wanted:
    """Which streams a client asks for; a terminal has no stderr of its own."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Read the parameters with which the API server calls a kubelet.

        Raises:
            ValueError: No stream is asked for.
        """
        stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
        if not (stdin or stdout or stderr):
            raise ValueError("you must specify at least 1 of stdin, stdout, stderr")
        return cls(stdin, stdout, stderr and not tty, tty)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, asked in (("stdout", self.stdout), ("stderr", self.stderr)) if asked)


class RemoteCommand:
    """The client's side of a command: an async context manager around an accepted WebSocket.

    Args:
        request: The request to upgrade.
        wanted: Its streams.
    """

    def __init__(self, request: web.Request, wanted: Wanted) -> None:
        self.wanted = wanted
        self._request = request
        self._socket = web.WebSocketResponse(
            protocols=PROTOCOLS, compress=False, max_msg_size=0, timeout=CLOSE_SECONDS
        )

    @property
    def response(self) -> web.WebSocketResponse:
        return self._socket

    async def accept(self) -> None:
        """Finish the handshake; the empty message tells the client that the streams are there."""
        await self._socket.prepare(self._request)
        first = STDOUT if self.wanted.stdout else STDERR if self.wanted.stderr else ERROR
        await self._socket.send_bytes(bytes([first]))

    async def send(self, stream: str, data: bytes) -> None:
        """Pass output on.

        Raises:
            ConnectionError: The client has gone.
        """
        channel = STDOUT if stream == "stdout" else STDERR
        await self._socket.send_bytes(bytes([channel]) + data)

    async def finish(self, status: Mapping[str, Any]) -> None:
        """Tell the client how it ended, and close."""
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
            await self._socket.close()

    async def input(self) -> AsyncIterator[bytes | tuple[int, int] | None]:
        """Yield what the client sends until it goes: input, None at its end, or columns and rows."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN and self.wanted.stdin and data:
                yield data
            elif channel == CLOSE and data[:1] == bytes([STDIN]):
                yield None
            elif channel == RESIZE and (size := _size(data)):
                yield size


async def unless_gone(work: Any, gone: Any) -> Any:
    """Return the result of ``work``, or None when ``gone``, which feeds it, ends first: the client went."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def exit_status(code: int) -> dict[str, Any]:
    """Return the v1.Status of a command that ended with ``code``."""
    if code == 0:
        return SUCCESS
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def error_status(message: str) -> dict[str, Any]:
    """Return the v1.Status of a command that did not come to an end of its own."""
    text = f"Internal error occurred: {message}"
    causes = [{"message": message}]
    return {
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": "InternalError",
        "details": {"causes": causes},
        "code": 500,
    }


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        size = json.loads(data)
        return min(int(size["Width"]), 0xFFFF), min(int(size["Height"]), 0xFFFF)
    except (ValueError, KeyError, TypeError):
        return None
