"""The kubelet's HTTPS API, which the API server calls; one listener for all nodes.

A client needs a certificate of the cluster's CA with the API server's name; metrics-server may read its
metrics. Errors are the kubelet's messages in plain text, because kubectl shows them. ``run`` answers 501.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from localkube.api_client import replacements
from localkube.kubelet.heartbeat import work_for
from localkube.kubelet.logs.container_log import parse_timestamp, timestamp
from localkube.kubelet.logs.log_reader import LogFiles, LogOptions, read_log
from localkube.kubelet.pods.component_pods import read_component_log
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.resources.stats import may_read
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.work_pools import STREAMS
from localkube.network.accepting import accept
from localkube.network.fair_shares import Allowances, PodNamespaces, Shares
from localkube.tasks import start_task

log = logging.getLogger(__name__)

API_SERVER = "kube-apiserver-kubelet-client"
NOT_IMPLEMENTED = ("run", "checkpoint")
# Handshakes at a time, each with a deadline; connections in all; those that wait in the kernel.
HANDSHAKES, HANDSHAKE_SECONDS, MAX_CONNECTIONS, BACKLOG = 64, 10.0, 4096, 128
IDLE_SECONDS = 120.0
MAX_STREAMS, MIN_STREAMS, NEW_STREAMS, NEW_AT_ONCE = 2048, 128, 20, 200
NUMBERS = {"tail_lines": "tailLines", "limit_bytes": "limitBytes"}


class KubeletServer:
    """Serves the kubelet's API; an async context manager.

    Args:
        component_log: Returns the log of a component's pod, by namespace and name.
        clients: The addresses that may connect, None for any; connections from others are reset before
            anything is read from them or allocated for them.
    """

    def __init__(
        self,
        pods: PodManager,
        *,
        files: LogFiles,
        cert_file: Path,
        key_file: Path,
        client_ca_file: Path,
        component_log: Callable[[str, str], Path | None] = lambda namespace, name: None,
        routes: Iterable[web.RouteDef] = (),
        clients: Collection[str] | None = None,
    ) -> None:
        self._pods = pods
        self._files = files
        self._component_log = component_log
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client_ca_file))
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._certificate = cert_file, key_file
        self._tls.load_cert_chain(*self._certificate)
        self._clients, self._listening = clients, list[asyncio.Task[None]]()
        self._streams = stream_shares()
        self._starts = Allowances(PodNamespaces(), refill=NEW_STREAMS, burst=NEW_AT_ONCE)
        app = web.Application(middlewares=[self._authorize, self._limit_streams])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.add_routes(routes)
        for verb in NOT_IMPLEMENTED:
            app.router.add_route("*", f"/{verb}/{{rest:.*}}", self._not_implemented)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=0.1,
            keepalive_timeout=IDLE_SECONDS,
        )

    async def __aenter__(self) -> "KubeletServer":
        await self._runner.setup()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for listening in self._listening:
            listening.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await self._runner.cleanup()

    async def listen(self, host: str, port: int) -> int:
        """Listen on an address (``0.0.0.0`` for every node's) and return the port."""
        sock = socket.create_server((host, port))
        self.listen_on(sock)
        return sock.getsockname()[1]

    def listen_on(self, sock: socket.socket) -> None:
        sock.listen(BACKLOG)
        self._listening.append(start_task(self._accept(sock), name="the kubelet's listener", critical=True))

    async def _accept(self, sock: socket.socket) -> None:
        with sock:
            await accept(sock, self._connect, limit=HANDSHAKES, admit=self._is_admitted)

    def _is_admitted(self, client: socket.socket) -> bool:
        assert self._runner.server is not None
        if len(self._runner.server.connections) >= MAX_CONNECTIONS:
            return False
        try:
            return self._clients is None or client.getpeername()[0] in self._clients
        except OSError:  # it was reset before it was accepted
            return False

    async def _connect(self, client: socket.socket) -> None:
        """Pass a connection to the server once its TLS handshake is done; close it on failure or timeout."""
        client.setblocking(False)
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._runner.server, client, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, ssl.SSLError) as error:  # a timeout is one
            log.debug("a connection to the kubelet: %s", error)
            client.close()

    async def follow_renewals(self) -> None:
        """Serve new connections with each renewed certificate."""
        async for _ in replacements(self._certificate[0]):
            try:
                self._tls.load_cert_chain(*self._certificate)
            except OSError as error:
                log.warning("the renewed certificate cannot be served: %s", error)

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Any) -> web.StreamResponse:
        certificate = request.get_extra_info("peercert") or {}
        name = dict(pair for part in certificate.get("subject", ()) for pair in part).get("commonName", "")
        if name != API_SERVER and not may_read(name, request.path):
            return _refuse(403, f"Forbidden (user={name}, verb={request.method.lower()}, resource=nodes)")
        return await handler(request)

    @web.middleware
    async def _limit_streams(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse streams beyond a namespace's share: logs, exec, attach and port-forward."""
        namespace = request.match_info.get("namespace")
        if namespace is None:
            return await handler(request)
        holding = self._streams.acquire(namespace) if self._starts.try_spend(namespace, 1) else None
        if holding is None:
            limits = f"at most {self._streams.of_client} at a time, and {NEW_STREAMS} new ones a second"
            message = f"too many streams in namespace {namespace}: {limits}"
            return web.Response(status=429, text=message, headers={"Retry-After": "1"})
        try:
            with work_for(namespace):
                return await handler(request)
        finally:
            self._streams.release(holding)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _not_implemented(self, request: web.Request) -> web.Response:
        verb = request.path.split("/")[1]
        return _refuse(501, f"this kubelet does not offer {verb}; kubectl exec and kubectl logs work")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, name, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        if component_log := self._component_log(namespace, name):
            return await self._send(request, read_component_log(component_log, log_options(request.query)))
        pod = self._pods.pod(namespace, name)
        if pod is None:
            return _refuse(404, f'pod "{name}" does not exist')
        if not any(listed["name"] == container for _, listed in containers(pod)):
            return _refuse(404, f'container "{container}" not found in pod "{name}"')
        try:
            options = log_options(request.query)
        except ValueError as error:
            return _refuse(422, str(error))
        about = f'container "{container}" in pod "{name}"'
        previous = _parse_bool(request.query.get("previous"))
        path = self._pods.log_path(pod, container, previous=previous)
        if path is None and previous:
            return _refuse(400, f"previous terminated {about} not found")
        if path is None:
            reason = self._pods.waiting_reason(pod, container)
            detail = f": {reason}" if reason else " - no logs yet"
            return _refuse(400, f"{about} is waiting to start{detail}")
        return await self._send(request, read_log(path, files=self._files, options=options))

    async def _send(self, request: web.Request, log: AsyncGenerator[bytes]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):  # the reader has gone: kubectl logs was interrupted
            async with contextlib.aclosing(log) as blocks:
                async for block in blocks:
                    await STREAMS.pass_on(len(block))
                    await answer.write(block)
            await answer.write_eof()
        return answer


def stream_shares() -> Shares:
    """Create the shares of namespaces in streams: an eighth of this process's descriptors, two for each."""
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = max(MIN_STREAMS, min(MAX_STREAMS, descriptors // 8))
    return Shares(total, of_client=total // 4)


def log_options(query: Mapping[str, str]) -> LogOptions:
    """Parse the query of ``v1.PodLogOptions``."""
    numbers = {field: _number(query, parameter) for field, parameter in NUMBERS.items()}
    seconds = _number(query, "sinceSeconds")
    since = b""
    if seconds is not None and query.get("sinceTime"):
        raise ValueError("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None:
        since = timestamp(time.time_ns() - seconds * 1_000_000_000)
    elif query.get("sinceTime"):
        since = parse_timestamp(query["sinceTime"])
    return LogOptions(
        follow=_parse_bool(query.get("follow")),
        timestamps=_parse_bool(query.get("timestamps")),
        since=since,
        **numbers,
    )


def _number(query: Mapping[str, str], field: str) -> int | None:
    text = query.get(field)
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{field}: Invalid value: {text}: must be greater than or equal to 0")
    return int(text)


def _parse_bool(text: str | None) -> bool:
    return text is not None and text.lower() not in ("false", "0")


def _refuse(status: int, message: str) -> web.Response:
    return web.Response(status=status, text=message)
