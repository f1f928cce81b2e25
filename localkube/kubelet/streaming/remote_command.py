"""The WebSocket protocol of ``kubectl exec`` and ``attach``: channels for streams, errors and sizes.

kubectl and most client libraries use version 5; version 4 cannot close stdin. Both report the exit of a
command as a v1.Status on the error channel. Without a version, success is not reported, and an error is only
its message.

Source: k8s.io/apiserver/pkg/util/proxy, and k8s.io/kubelet/pkg/cri/streaming/remotecommand/websocket.go.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from localkube.kubelet.streaming.channels import Channels, accept

WITH_STATUS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io")
PROTOCOLS = (*WITH_STATUS, "channel.k8s.io", "base64.channel.k8s.io")
MAX_SIZE_BYTES = 1024
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
SUCCESS = {"metadata": {}, "status": "Success"}


@dataclass(frozen=True)
class StreamOptions:
    """The streams that a client requests; a terminal has no stderr of its own."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "StreamOptions":
        """Parse the query of the API server's request."""
        stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
        if not (stdin or stdout or stderr):
            raise ValueError("you must specify at least 1 of stdin, stdout, stderr")
        return cls(stdin, stdout, stderr and not tty, tty)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, enabled in (("stdout", self.stdout), ("stderr", self.stderr)) if enabled)


class RemoteCommand:
    """The client's side of a command."""

    def __init__(self, channels: Channels, options: StreamOptions) -> None:
        self.options = options
        self.response = channels.socket
        self._channels = channels

    @classmethod
    async def accept(cls, request: web.Request, options: StreamOptions) -> "RemoteCommand":
        """Finish the handshake; an empty message tells the client that the streams are ready."""
        command = cls(Channels(await accept(request, PROTOCOLS)), options)
        first = STDOUT if options.stdout else STDERR if options.stderr else ERROR
        await command._channels.send(first, b"")
        return command

    async def send(self, stream: str, data: bytes) -> None:
        await self._channels.send(STDOUT if stream == "stdout" else STDERR, data)

    async def finish(self, status: Mapping[str, Any]) -> None:
        """Send the status, and close."""
        with contextlib.suppress(ConnectionError):
            if self.response.ws_protocol in WITH_STATUS:
                await self._channels.send(ERROR, json.dumps(status).encode())
            elif message := status.get("message"):
                await self._channels.send(ERROR, message.encode())
            await self.response.close()

    async def input(self) -> AsyncGenerator[bytes | tuple[int, int] | None]:
        """Yield the client's messages: input, None at its EOF, or a terminal size in columns and rows."""
        async for channel, data in self._channels.received():
            if channel == STDIN and self.options.stdin and data:
                yield data
            elif channel == CLOSE and data == bytes([STDIN]):
                yield None
            elif channel == RESIZE and (size := _size(data)):
                yield size


def exit_status(code: int) -> dict[str, Any]:
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
    """Build the v1.Status of a command that could not be run to completion."""
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
    if len(data) > MAX_SIZE_BYTES:
        return None
    try:
        size = json.loads(data)
        columns, rows = (min(max(int(size[name]), 0), 0xFFFF) for name in ("Width", "Height"))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return columns, rows
