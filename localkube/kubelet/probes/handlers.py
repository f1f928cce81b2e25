"""Run a probe's or a lifecycle hook's handler once: exec, httpGet, tcpSocket, grpc or sleep.

Outputs use the kubelet's messages, because people search for them. ``prober.py`` schedules probes and
applies their thresholds.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#probe-check-methods
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
from yarl import URL

from localkube.kubelet.containers.expansion import ArgumentSpace, ConfigError, expand_words
from localkube.network.addresses import Addresses
from localkube.runtime.client import RuntimeCallError

OUTPUT_BYTES = 10 * 1024
REDIRECTS = 10
# Runs a command in a container, by its identity, with a timeout in seconds; None for no limit.
# Returns the exit code and the output; raises TimeoutError, or RuntimeCallError if the container has ended.
Execute = Callable[[str, list[str], float | None], Awaitable[tuple[int, bytes]]]
Headers = Sequence[tuple[str, str]]


class HandlerError(Exception):
    """The handler could not be run, so the state of the container is unknown."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe; ``warning`` marks a success that deserves an Event."""

    healthy: bool
    output: str = ""
    warning: bool = False


@dataclass(frozen=True)
class ProbeTarget:
    """One run of a container, and its pod's address."""

    identity: str
    container: Mapping[str, Any]
    address: str


class Handlers:
    """Runs the handlers of probes and hooks."""

    def __init__(self, addresses: Addresses, *, execute: Execute, version: str) -> None:
        self._addresses = addresses
        self._execute = execute
        self._version = ".".join(version.removeprefix("v").split(".")[:2])

    async def probe(self, action: Mapping[str, Any], target: ProbeTarget, *, timeout: float) -> ProbeResult:
        """Run the handler of a v1.Probe once, within ``timeout`` seconds."""
        if not target.address:  # no address would mean this process's own
            raise HandlerError("the pod has no address")
        if action.get("exec"):
            # As in the kubelet, only literal values of the manifest are expanded here.
            static = {entry["name"]: entry.get("value") or "" for entry in target.container.get("env") or []}
            try:
                words = action["exec"].get("command") or []
                command = expand_words(words, static, ArgumentSpace(), what="the probe's command")
            except ConfigError as error:
                return ProbeResult(False, error.message)
            return await self._exec(command, target, timeout)
        if action.get("httpGet"):
            return await self._http_probe(action["httpGet"], target, timeout)
        if action.get("tcpSocket"):
            host = action["tcpSocket"].get("host") or target.address
            return await self._tcp(host, port_number(action["tcpSocket"]["port"], target.container), timeout)
        if action.get("grpc"):
            port, service = int(action["grpc"]["port"]), action["grpc"].get("service") or ""
            return await self._grpc(target.address, port, service=service, timeout=timeout)
        raise HandlerError("missing probe handler")

    async def hook(self, action: Mapping[str, Any], target: ProbeTarget) -> None:
        """Run a lifecycle hook, without a time limit."""
        if action.get("exec"):
            # As in the kubelet, its command is not expanded.
            result = await self._exec(action["exec"].get("command") or [], target, None)
        elif action.get("httpGet"):
            # Any response counts as success.
            status, output = await self._http_get(action["httpGet"], target, None, "kube-lifecycle")
            result = ProbeResult(status is not None, output)
        elif action.get("sleep"):
            await asyncio.sleep(action["sleep"].get("seconds", 0))
            return
        else:
            raise HandlerError("invalid handler")
        if not result.healthy:
            raise HandlerError(result.output)

    async def _exec(self, command: list[str], target: ProbeTarget, timeout: float | None) -> ProbeResult:
        try:
            code, output = await self._execute(target.identity, command, timeout)
        except TimeoutError:
            shown = " ".join(command)[:OUTPUT_BYTES]
            return ProbeResult(False, f'command timed out: "{shown}" timed out after {timeout:g}s')
        except RuntimeCallError as error:
            raise HandlerError(error.message) from error
        return ProbeResult(code == 0, output[:OUTPUT_BYTES].decode(errors="replace"))

    async def _http_probe(
        self, action: Mapping[str, Any], target: ProbeTarget, timeout: float
    ) -> ProbeResult:
        status, output = await self._http_get(action, target, timeout, "kube-probe")
        if status is None:
            return ProbeResult(False, output)
        if 300 <= status < 400:
            return ProbeResult(True, f"Probe terminated redirects, Response body: {output}", warning=True)
        if 200 <= status < 300:
            return ProbeResult(True, output)
        return ProbeResult(False, f"HTTP probe failed with statuscode: {status}")

    async def _http_get(
        self, action: Mapping[str, Any], target: ProbeTarget, timeout: float | None, agent: str
    ) -> tuple[int | None, str]:
        """GET without certificate checks or proxies, following redirects on the same host only.

        Returns:
            Status and beginning of the body; None and the reason when there was no response.

        Source: https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/#http-probes
        """
        scheme = (action.get("scheme") or "http").lower()
        host, port = action.get("host") or target.address, port_number(action["port"], target.container)
        path = action.get("path") or "/"
        url = f"{scheme}://{host}:{port}{path if path.startswith('/') else '/' + path}"
        requested = [(h["name"], h.get("value", "")) for h in action.get("httpHeaders") or []]
        headers = _with_defaults(requested, f"{agent}/{self._version}")
        try:
            async with asyncio.timeout(timeout), _http_session() as session:
                for _ in range(REDIRECTS):
                    status, body, location = await self._get_once(session, url, headers)
                    following = urljoin(url, location) if location else ""
                    if not following or urlsplit(following).hostname != urlsplit(url).hostname:
                        return status, body
                    url = following
                return None, f'Get "{url}": stopped after {REDIRECTS} redirects'
        except TimeoutError:
            late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return None, f'Get "{url}": {late}'
        except aiohttp.ClientConnectorError as error:
            parts = urlsplit(url)
            reason = _dial_error(parts.hostname or "", parts.port or port, error.os_error)
            return None, f'Get "{url}": {reason}'
        except (aiohttp.ClientError, OSError, ValueError) as error:
            is_eof = isinstance(error, aiohttp.ServerDisconnectedError)
            return None, f'Get "{url}": {"EOF" if is_eof else error}'

    async def _get_once(
        self, session: aiohttp.ClientSession, url: str, headers: Headers
    ) -> tuple[int, str, str]:
        """GET one URL; return status, beginning of the body, and the target of a redirect."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        netloc = "{}:{}".format(*self._addresses.reach(parts.hostname or "", port))
        if not any(name.lower() == "host" for name, _ in headers):
            headers = [("Host", parts.netloc), *headers]
        target = URL(parts._replace(netloc=netloc, fragment="").geturl(), encoded=True)
        async with session.get(target, headers=headers, allow_redirects=False) as answer:
            body = b""
            while len(body) < OUTPUT_BYTES and (piece := await answer.content.read(OUTPUT_BYTES - len(body))):
                body += piece
            location = answer.headers.get("Location", "") if 300 <= answer.status < 400 else ""
            return answer.status, body.decode(errors="replace"), location

    async def _tcp(self, host: str, port: int, timeout: float) -> ProbeResult:
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(*self._addresses.reach(host, port))
        except (TimeoutError, OSError) as error:
            return ProbeResult(False, _dial_error(host, port, error))
        writer.close()
        return ProbeResult(True)

    async def _grpc(self, host: str, port: int, *, service: str, timeout: float) -> ProbeResult:
        """Call the health service once; ``service`` empty is the whole server.

        Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
        """
        import grpc.aio  # large, and few pods need it
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        # No channel pool: the probe also checks that new connections are accepted.
        options = [
            ("grpc.primary_user_agent", f"kube-probe/{self._version}"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        place = "{}:{}".format(*self._addresses.reach(host, port))
        async with grpc.aio.insecure_channel(place, options=options) as channel:
            try:
                async with asyncio.timeout_at(end):
                    await channel.channel_ready()
            except TimeoutError:
                failed = f'failed to connect service "{host}:{port}" within {timeout:g}s'
                return ProbeResult(False, f"timeout: {failed}: context deadline exceeded")
            request = health_pb2.HealthCheckRequest(service=service)
            try:
                remaining = max(0.001, end - loop.time())
                answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=remaining)
            except grpc.aio.AioRpcError as error:
                return ProbeResult(False, _grpc_error(error.code().name, error.details(), timeout))
        state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        if state != "SERVING":
            return ProbeResult(False, f'service unhealthy (responded with "{state}")')
        return ProbeResult(True, "service healthy")


def port_number(port: int | str, container: Mapping[str, Any]) -> int:
    """Resolve a port number or a port's name.

    Example:
        >>> port_number("web", {"ports": [{"name": "web", "containerPort": 80}]})
        80
    """
    named = {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
    try:
        number = port if isinstance(port, int) else int(named.get(port, port))
    except ValueError:
        raise HandlerError(f"port {port} not found") from None
    if not 0 < number < 65536:
        raise HandlerError(f"invalid port number: {number}")
    return number


def _with_defaults(headers: Headers, agent: str) -> Headers:
    names = {name.lower() for name, _ in headers}
    sent = [(name, value) for name, value in headers if not (name.lower() == "accept" and not value)]
    defaults = (("User-Agent", agent), ("Accept", "*/*"))
    return sent + [(name, value) for name, value in defaults if name.lower() not in names]


def _http_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=False, force_close=True, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    )


def _dial_error(host: str, port: int, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        reason = "i/o timeout"
    elif isinstance(error, ConnectionRefusedError):
        reason = "connect: connection refused"
    else:
        reason = f"connect: {getattr(error, 'strerror', None) or error}".lower()
    return f"dial tcp {host}:{port}: {reason}"


def _grpc_error(code: str, details: str, timeout: float) -> str:
    if code == "UNIMPLEMENTED":
        missing = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
        return f"{missing}: {details}"
    if code == "DEADLINE_EXCEEDED":
        return f"timeout: health rpc did not complete within {timeout:g}s"
    name = code.title().replace("_", "")
    return f"error: health rpc probe failed: rpc error: code = {name} desc = {details}"
