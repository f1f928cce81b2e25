"""Flood a pod with streams of one API client: exec, attach, port-forward and logs.

Each stream opens again when it has ended or was refused, as programs do that lose their connection.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlencode

import aiohttp

MAIN = {"container": "main"}
# The path below the pod's, its parameters, and what the client sends again and again.
FLOODS: dict[str, tuple[str, Mapping[str, object], bytes]] = {
    "exec that writes": ("exec", MAIN | {"stdout": 1, "command": "yes"}, b""),
    "exec that ends": ("exec", MAIN | {"stdout": 1, "command": "true"}, b""),
    # `kubectl cp` to a pod is an exec of tar that reads.
    "exec that reads": (
        "exec",
        MAIN | {"stdin": 1, "stdout": 1, "command": ["tar", "xf", "-", "-O"]},
        b"\0" * 65536,
    ),
    "attach": ("attach", MAIN | {"stdout": 1}, b""),
    "logs": ("log", MAIN | {"follow": "true"}, b""),
    "port-forward": ("portforward", {"ports": 8080}, b""),
}


async def flood(pod: str, name: str, *, tls: ssl.SSLContext, streams: int, seconds: float) -> Counter[str]:
    """Open streams for a while; count opened ones, their bytes, and the errors of the others.

    Args:
        pod: Its URL.
        name: One of ``FLOODS``.
        streams: At a time.
    """
    path, parameters, sent = FLOODS[name]
    url, counts = f"{pod}/{path}?{urlencode(parameters, doseq=True)}", Counter[str]()
    connections = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connections) as session:
        tasks = [asyncio.create_task(_repeat(session, url, sent, counts)) for _ in range(streams)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return counts


async def _repeat(session: aiohttp.ClientSession, url: str, sent: bytes, counts: Counter[str]) -> None:
    while True:
        try:
            if "/log?" in url:
                async with session.get(url) as answer:
                    answer.raise_for_status()
                    counts["opened"] += 1
                    async for block in answer.content.iter_any():
                        counts["bytes"] += len(block)
            else:
                async with session.ws_connect(
                    url, protocols=("v5.channel.k8s.io", "v4.channel.k8s.io")
                ) as sock:
                    counts["opened"] += 1
                    while sent:
                        await sock.send_bytes(sent)
                        counts["bytes"] += len(sent)
                        await asyncio.sleep(0)  # a connection that is lost takes all at once
                    async for message in sock:
                        counts["bytes"] += len(message.data)
        except aiohttp.ClientResponseError as error:
            counts[str(error.status)] += 1
        except aiohttp.ClientError as error:
            counts[type(error).__name__] += 1
        await asyncio.sleep(0.1)
