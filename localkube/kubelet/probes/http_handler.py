"""One HTTP GET of a probe or a hook: no certificate is checked, no proxy used, no foreign redirect followed.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/#http-probes
"""

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urljoin, urlsplit

import aiohttp
from yarl import URL

from localkube.kubelet.probes.handlers import OUTPUT_BYTES, dial_error

REDIRECTS = 10


async def get(
    *,
    scheme: str,
    host: str,
    port: int,
    path: str,
    headers: Sequence[tuple[str, str]],
    agent: str,
    timeout: float | None,
    reach: Callable[[str, int], tuple[str, int]],
) -> tuple[int | None, str]:
    """Return the status and the beginning of the body, or None and why there was no answer.

    Args:
        scheme: ``http`` or ``https``.
        host: As the pod's specification says it.
        port: The same.
        path: With a query, if there is one.
        headers: Added to the usual ones, or in their place.
        agent: The user agent.
        timeout: Seconds for all of it; None for as long as it takes.
        reach: Where an address of the cluster is found on this machine.
    """
    url = first = f"{scheme}://{host}:{port}{path if path.startswith('/') else '/' + path}"
    names = {name.lower() for name, _ in headers}
    sent = [(name, value) for name, value in headers if not (name.lower() == "accept" and not value)]
    sent += [("User-Agent", agent)] * ("user-agent" not in names) + [("Accept", "*/*")] * (
        "accept" not in names
    )
    try:
        async with asyncio.timeout(timeout), _session() as session:
            for _ in range(REDIRECTS):
                status, body, location = await _once(session, url, sent, reach)
                following = urljoin(url, location) if location else ""
                if not following or urlsplit(following).hostname != urlsplit(first).hostname:
                    return status, body
                url = following
            return None, f'Get "{url}": stopped after {REDIRECTS} redirects'
    except TimeoutError:
        late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return None, f'Get "{url}": {late}'
    except aiohttp.ClientConnectorError as error:
        at = urlsplit(url)
        return None, f'Get "{url}": {dial_error(at.hostname, at.port or port, error.os_error)}'
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return None, f'Get "{url}": {"EOF" if isinstance(error, aiohttp.ServerDisconnectedError) else error}'


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=False, force_close=True, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    )


async def _once(
    session: aiohttp.ClientSession,
    url: str,
    headers: Sequence[tuple[str, str]],
    reach: Callable[[str, int], tuple[str, int]],
) -> tuple[int, str, str]:
    """Return status, beginning of the body, and where a redirect leads."""
    at = urlsplit(url)
    port = at.port or (443 if at.scheme == "https" else 80)
    reached = "{}:{}".format(*reach(at.hostname, port))
    own = any(name.lower() == "host" for name, _ in headers)
    named = [*headers] if own else [("Host", at.netloc), *headers]
    target = URL(at._replace(netloc=reached, fragment="").geturl(), encoded=True)
    async with session.get(target, headers=named, allow_redirects=False) as answer:
        body = b""
        while len(body) < OUTPUT_BYTES and (piece := await answer.content.read(OUTPUT_BYTES - len(body))):
            body += piece
        moved = answer.headers.get("Location", "") if 300 <= answer.status < 400 else ""
        return answer.status, body.decode(errors="replace"), moved
