"""Commands executed in a running container: for ``kubectl exec``, probes and hooks.

The runtime starts them (``runtime/container.py``) and reports their exits. They end with this kubelet, with
their container, and when their client has disconnected. The protocol of ``kubectl exec`` is in
``streaming/remote_command.py``.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from localkube.kubelet.containers.async_io import blocks, resize, write_all
from localkube.runtime.client import RuntimeCallError, RuntimeClient, RuntimeExited
from localkube.runtime.container_spec import ProcessSpec
from localkube.tasks import start_task

# How long output of processes that a command has left behind is waited for.
QUIET_SECONDS = 1.0
OUTPUT_BYTES = 10 * 1024
NOT_EXECUTED = 126
TERMINAL = ("TERM=xterm",)


class Execution:
    """One command in a container; made by ``Executions.start``."""

    def __init__(self, identity: str, client: RuntimeClient) -> None:
        self.identity = identity
        self.pid = 0
        self._client = client
        self._streams: dict[str, int] = {}
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def started(self, entry: dict[str, Any], descriptors: list[int]) -> None:
        self.pid = entry["pid"]
        self._streams = dict(zip(entry["streams"], descriptors, strict=True))
        if terminal := self._streams.pop("tty", None):
            self._streams |= {"stdout": terminal, "stdin": os.dup(terminal)}

    def set_exit_code(self, entry: dict[str, Any]) -> None:
        """Record the exit that the runtime reports."""
        if not self._code.done():
            code = os.waitstatus_to_exitcode(entry["status"])
            self._code.set_result(code if code >= 0 else 128 - code)

    def output(self, stream: str) -> AsyncGenerator[bytes]:
        """Yield data from stdout or stderr until EOF; with a terminal, all output is stdout."""
        descriptor = self._streams.pop(stream, None)
        return _no_output() if descriptor is None else blocks(descriptor)

    async def write(self, data: bytes) -> None:
        """Write to its standard input; unread input is lost."""
        if "stdin" in self._streams:
            with contextlib.suppress(BrokenPipeError):
                await write_all(self._streams["stdin"], data)

    def end_input(self) -> None:
        """Close its stdin; a terminal has no EOF except Ctrl-D, and stays open."""
        if "stdin" in self._streams and not os.isatty(self._streams["stdin"]):
            os.close(self._streams.pop("stdin"))

    def resize(self, columns: int, rows: int) -> None:
        if "stdin" in self._streams and os.isatty(self._streams["stdin"]):
            resize(self._streams["stdin"], columns=columns, rows=rows)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def close(self) -> None:
        """Close its streams, and kill its whole session if it still runs. Idempotent."""
        for descriptor in self._streams.values():
            os.close(descriptor)
        self._streams.clear()
        if not self._code.done():
            start_task(self.kill(), name=f"kill {self.identity}")

    async def kill(self) -> None:
        with contextlib.suppress(RuntimeExited):
            await self._client.call("kill", id=self.identity, signal=9)


class Executions:
    """Starts commands in containers, and reports their exits to them."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self._running: dict[str, Execution] = {}

    async def start(
        self, container: str, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Execution:
        """Start a command in a running container, with its environment and working directory.

        Raises:
            RuntimeCallError: It could not be started; stage ``exec`` means a faulty command.
        """
        execution = Execution(f"{container}.exec.{secrets.token_hex(8)}", self._client)
        self._running[execution.identity] = execution
        process = ProcessSpec(tuple(argv), env=TERMINAL if tty else (), terminal=tty)
        try:
            entry, descriptors = await self._client.call(
                "exec", id=execution.identity, container=container, process=process, stdin=stdin
            )
        except BaseException:
            # The waiting task may have been cancelled while the request was on its way.
            self._running.pop(execution.identity, None)
            start_task(execution.kill(), name=f"kill {execution.identity}")
            raise
        execution.started(entry, descriptors)
        return execution

    async def run(
        self, container: str, argv: Sequence[str], timeout: float | None = None
    ) -> tuple[int, bytes]:
        """Run a command to its end; returns its exit code and the first 10 KiB of its output.

        A command that cannot be executed exits with 126, as in a shell, and the reason is its output.

        Raises:
            RuntimeCallError: The container has ended.
            TimeoutError: It took longer, and has been killed.
        """
        output = bytearray()
        async with asyncio.timeout(timeout):
            try:
                execution = await self.start(container, argv)
            except RuntimeCallError as error:
                if error.stage != "exec":
                    raise
                return NOT_EXECUTED, error.message.encode()
            try:
                code = await finish(
                    execution, {name: lambda data: _append(output, data) for name in ("stdout", "stderr")}
                )
            finally:
                execution.close()
        return code, bytes(output)

    def command_exited(self, entry: dict[str, Any]) -> None:
        """Record the exit of a command that the runtime reports."""
        if execution := self._running.pop(entry["id"], None):
            execution.set_exit_code(entry)


async def finish(execution: Execution, outputs: dict[str, Any]) -> int:
    """Pass output on until the command has ended; returns its exit code.

    A process that the command has left behind may keep the streams open: after its exit, a second without
    output ends them.
    """
    received = asyncio.Event()
    pumps = [
        asyncio.create_task(_pump(execution.output(name), consume, received))
        for name, consume in outputs.items()
    ]
    try:
        await _ended(execution, pumps)
        while pending := [pump for pump in pumps if not pump.done()]:
            received.clear()
            await asyncio.wait(pending, timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not received.is_set() and all(not pump.done() for pump in pending):
                break
        return await execution.wait()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _ended(execution: Execution, pumps: list[asyncio.Task[None]]) -> None:
    """Wait for the exit of a command; raise a pump's error at once."""
    end = asyncio.create_task(execution.wait())
    try:
        waited = {end, *pumps}
        while not end.done():
            done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        end.cancel()


async def _pump(
    source: AsyncGenerator[bytes], consume: Callable[[bytes], Awaitable[object]], received: asyncio.Event
) -> None:
    async with contextlib.aclosing(source) as data_blocks:
        async for data in data_blocks:
            received.set()
            await consume(data)


async def _append(output: bytearray, data: bytes) -> None:
    output += data[: OUTPUT_BYTES - len(output)]


async def _no_output() -> AsyncGenerator[bytes]:
    return
    yield b""
