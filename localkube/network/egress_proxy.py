"""The API server's egress proxy in plain mode: HTTP CONNECT on a Unix socket.

It translates the addresses of nodes, pods and Services for the API server's egress selector.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from localkube.network.addresses import Addresses

log = logging.getLogger(__name__)

BLOCK = 256 * 1024
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
FAILED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"


class EgressProxy:
    """Serves CONNECT; an async context manager.

    Args:
        path: The socket; whoever can open it reaches what the kubelet reaches, so its directory is private.
    """

    def __init__(self, path: Path, addresses: Addresses) -> None:
        self._path, self._addresses = path, addresses
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "EgressProxy":
        self._path.unlink(missing_ok=True)
        # A relative path, because the kernel allows 107 bytes; the kubelet works in the cluster's directory.
        self._server = await asyncio.start_unix_server(self._serve, os.path.relpath(self._path))
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b" ", 2)
            host, _, port = target.decode().rpartition(":")
            if method != b"CONNECT":
                writer.write(FAILED)
                return
            try:
                far_reader, far_writer = await asyncio.open_connection(
                    *self._addresses.reach(host.strip("[]"), int(port))
                )
            except OSError as error:
                log.debug("CONNECT %s: %s", target.decode(), error)
                writer.write(FAILED)
                return
            writer.write(ESTABLISHED)
            with contextlib.closing(far_writer):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        # One end has closed; the other direction has no peer either.
        writer.close()
