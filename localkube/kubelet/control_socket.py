"""The kubelet's control socket: JSON lines on a Unix socket, for what Kubernetes has no verb for.

Requests stop, start, isolate and reconnect nodes, and set the number of simulated ones.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError
from localkube.runtime.client import short_name

log = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


async def serve(path: Path, handle: Handler) -> asyncio.Server:
    """Answer each request with ``{"result": …}`` or ``{"error": …}`` until the server is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = {"result": await handle(json.loads(await reader.readline()))}
        except LocalClusterError as error:
            said = {"error": error.as_dict()}
        except Exception as error:  # the one who asks must not wait for an answer that never comes
            log.exception("a request failed")
            fix = "look into the kubelet's log"
            said = {"error": LocalClusterError(repr(error), about=str(path), fix=fix).as_dict()}
        writer.write(json.dumps(said).encode() + b"\n")
        writer.close()

    with short_name(path) as name:
        server = await asyncio.start_unix_server(answer, path=name)
    path.chmod(0o600)
    return server
