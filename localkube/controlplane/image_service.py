"""Pulls images for the kubelet, which is in the cluster's network, by a program on the host's.

A connection to the Unix socket is one run of the program ``images``: a line of JSON says with which arguments
and what input; its lines of output are the answer, and the last one says how it ended.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from localkube.runtime.client import short_name

VERBS = ("pull", "prune", "checkout")
LINE_BYTES = 16 << 20


async def serve_images(path: Path, *, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.Server:
    """Serve on a Unix socket.

    Args:
        path: The socket, which is this user's alone.
        env: Its environment: proxies, and where the user's credentials are.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            request = json.loads(await reader.readline())
            if request["arguments"][0] not in VERBS:
                raise ValueError(f"not one of {', '.join(VERBS)}: {request['arguments'][0]}")
            await _run([*argv, *request["arguments"]], env, request["input"], reader, writer)

    path.unlink(missing_ok=True)
    with short_name(path) as name:
        server = await asyncio.start_unix_server(answer, path=name, limit=LINE_BYTES)
    path.chmod(0o600)
    return server


async def _run(
    command: Sequence[str],
    env: Mapping[str, str],
    content: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(env),
        limit=LINE_BYTES,
    )
    # The client may have disconnected meanwhile.
    given_up = asyncio.create_task(reader.read())
    given_up.add_done_callback(lambda _: process.kill() if process.returncode is None else None)
    assert process.stdin and process.stdout  # pipes
    try:
        process.stdin.write(content.encode())
        process.stdin.close()
        async for line in process.stdout:
            writer.write(line)
            await writer.drain()
        status = await process.wait()
        writer.write(json.dumps({"event": "exit", "status": status}).encode() + b"\n")
        await writer.drain()
    finally:
        given_up.cancel()
        if process.returncode is None:
            process.kill()
