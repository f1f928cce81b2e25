"""Call the runtime from asyncio: the kubelet and the supervisor are its clients.

The requests and their answers are the ``_do_…`` methods of ``init.py``.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localkube.runtime import messages
from localkube.runtime.messages import close_all


class RuntimeCallError(Exception):
    """The runtime could not carry out a request; ``stage`` is sandbox, mount or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


class RuntimeExited(Exception):
    """The connection to the runtime ended, and with it every process that it had started."""


class RuntimeClient:
    """A connection to the runtime.

    Args:
        on_exit: Called with each exit: ``id``, ``owner``, ``pid``, ``status`` (waitpid's), ``ended``.
    """

    def __init__(self, sock: socket.socket, on_exit: Callable[[dict[str, Any]], None]) -> None:
        self._socket = sock
        self._on_exit = on_exit
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self.gone = self._loop.create_future()
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def connect(cls, path: Path, *, on_exit: Callable[[dict[str, Any]], None]) -> "RuntimeClient":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        with short_name(path) as name:
            sock.connect(name)
        return cls(sock, on_exit)

    async def call(self, op: str, **request: object) -> tuple[dict[str, Any], list[int]]:
        """Send a request; returns its answer and the file descriptors sent with it.

        Raises:
            RuntimeCallError: The runtime could not carry it out.
            RuntimeExited: The runtime has ended.
        """
        number = next(self._numbers)
        future = self._loop.create_future()
        self._waiting[number] = future
        await self._send({"op": op, "number": number, **request})
        answer, descriptors = await future
        if "error" in answer:
            raise RuntimeCallError(answer["stage"], answer["error"])
        return answer, descriptors

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            while True:
                if self.gone.done():
                    raise RuntimeExited("the runtime has ended")
                try:
                    messages.send(self._socket, message, [])
                    return
                except BlockingIOError:
                    await self._writable()
                except ConnectionError as error:
                    self._end()
                    raise RuntimeExited("the runtime has ended") from error

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(self._socket, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            received = messages.receive(self._socket)
        except BlockingIOError:
            return
        except ConnectionError:
            received = None
        if received is None:
            self._end()
            return
        message, descriptors = received
        if "answer" in message:
            future = self._waiting.pop(message["answer"])
            if future.done():
                close_all(descriptors)
            else:
                future.set_result((message, descriptors))
        else:
            self._on_exit(message)

    def _end(self) -> None:
        if self.gone.done():
            return
        self._loop.remove_reader(self._socket)
        self.gone.set_result(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RuntimeExited("the runtime has ended"))
        self._waiting.clear()

    def close(self) -> None:
        self._end()
        self._socket.close()


class short_name:
    """A path to a socket that is short enough for the kernel's limit of 107 bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory}/{self._path.name}"

    def __exit__(self, *exc: object) -> None:
        os.close(self._directory)
