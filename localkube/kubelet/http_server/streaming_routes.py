"""The kubelet's streaming routes: exec, attach and port-forward, by WebSocket.

The API server passes WebSockets on to nodes that declare ``ExtendWebSocketsToKubelet``. Port-forward may use
SPDY as well; exec and attach over SPDY are refused.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from localkube.kubelet.containers.attach import OutputListener
from localkube.kubelet.containers.exec import Execution, Executions, finish
from localkube.kubelet.containers.process import Process
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.streaming.channels import Channels, accept, messages, unless_gone
from localkube.kubelet.streaming.port_forward import (
    LARGEST_MESSAGE,
    PROTOCOL,
    PROTOCOLS,
    TUNNEL,
    SpdyTunnel,
    is_port,
    serve_channels,
)
from localkube.kubelet.streaming.remote_command import (
    SUCCESS,
    RemoteCommand,
    StreamOptions,
    error_status,
    exit_status,
)
from localkube.kubelet.streaming.upgrade import UpgradedConnection, is_spdy
from localkube.runtime.client import RuntimeCallError

NO_SPDY = "this node has exec and attach by WebSocket and not by SPDY: use kubectl 1.31 or newer"


class Streams:
    """The streaming routes."""

    def __init__(self, pods: PodManager, executions: Executions) -> None:
        self._pods, self._executions = pods, executions

    def routes(self) -> list[web.RouteDef]:
        container = "{namespace}/{pod}/{container}"
        return [
            web.route("*", f"/exec/{container}", self._exec),
            web.route("*", f"/attach/{container}", self._attach),
            web.route("*", "/portForward/{namespace}/{pod}", self._port_forward),
        ]

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        process, options = self._container(request)
        command = await RemoteCommand.accept(request, options)
        argv = request.query.getall("command", [])
        try:
            execution = await self._executions.start(
                process.identity, argv, stdin=options.stdin, tty=options.tty
            )
        except RuntimeCallError as error:
            await command.finish(error_status(f"error executing command in container: {error.message}"))
            return command.response
        try:
            outputs = {name: _sender(command, name) for name in options.outputs}
            code = await unless_gone(finish(execution, outputs), _feed(command, execution))
            if code is not None:
                await command.finish(exit_status(code))
        except ConnectionError:
            pass  # the client has gone, and close() ends the command
        finally:
            execution.close()
        return command.response

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        process, options = self._container(request)
        command = await RemoteCommand.accept(request, options)
        listed, name = containers(self._pod(request)), request.match_info["container"]
        stdin_once = any(container["name"] == name and container.get("stdinOnce") for _, container in listed)
        session = AttachSession(
            process, stdin_once=stdin_once and options.stdin, end_input=self._pods.end_input
        )
        listener = process.listen()
        try:
            passing = _pass_on(listener, command)
            if await unless_gone(passing, _feed(command, session)):
                await command.finish(SUCCESS)
        except ConnectionError:
            pass  # the client has gone: it was only attached
        finally:
            listener.close()
            session.close()
        return command.response

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod = self._pod(request, spdy=is_spdy(request))
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if not self._pods.has_sandbox(pod):
            raise web.HTTPInternalServerError(text=f'pod not found ("{name}_{namespace}")')
        about = f"{name}, uid {pod['metadata']['uid']}"
        connect = functools.partial(self._pods.connect, pod)
        if is_spdy(request):
            connection = await UpgradedConnection.accept(request, [PROTOCOL])
            with contextlib.suppress(ConnectionError):
                await SpdyTunnel(connection.messages(), connection.send, connect=connect, about=about).run()
            return connection.response
        ports = _ports(request.query.getall("port", []))
        sock = await accept(request, PROTOCOLS, largest=LARGEST_MESSAGE)
        with contextlib.suppress(ConnectionError):
            if sock.ws_protocol == TUNNEL:
                await SpdyTunnel(messages(sock), sock.send_bytes, connect=connect, about=about).run()
            else:
                await serve_channels(Channels(sock), ports, connect=connect, about=about)
        return sock

    def _container(self, request: web.Request) -> tuple[Process, StreamOptions]:
        """Find the requested container and streams; raise errors as responses."""
        pod = self._pod(request)
        name = request.match_info["container"]
        process = self._pods.process(pod, name)
        if process is None or not process.running:
            raise web.HTTPInternalServerError(text=f'container not found ("{name}")')
        try:
            options = StreamOptions.of(request.query)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return process, options

    def _pod(self, request: web.Request, *, spdy: bool = False) -> Mapping[str, Any]:
        pod = self._pods.pod(request.match_info["namespace"], request.match_info["pod"])
        if pod is None:
            raise web.HTTPNotFound(text="pod does not exist")
        if not spdy and request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPBadRequest(text=NO_SPDY)
        return pod


def _ports(texts: Sequence[str]) -> list[int]:
    """Parse the ports that a client library requests; kubectl names them inside its tunnel."""
    ports = [port for text in texts for port in text.split(",")]
    valid = all(map(is_port, ports))
    if not valid or len(ports) > 128:
        text = f"cannot forward to ports {', '.join(ports)}: name at most 128, each between 1 and 65535"
        raise web.HTTPBadRequest(text=text)
    return [int(port) for port in ports]


def _sender(command: RemoteCommand, stream: str) -> Any:
    async def send(data: bytes) -> None:
        await command.send(stream, data)

    return send


class AttachSession:
    """A client attached to a container's stdin, which with ``stdinOnce`` is closed when the client leaves."""

    def __init__(self, process: Process, *, stdin_once: bool, end_input: Callable[[Process], None]) -> None:
        self._process, self._stdin_once, self._end_input = process, stdin_once, end_input

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    def resize(self, columns: int, rows: int) -> None:
        self._process.resize(columns, rows)

    def end_input(self) -> None:
        if self._stdin_once:
            self._stdin_once = False
            self._end_input(self._process)

    def close(self) -> None:
        self.end_input()


async def _pass_on(listener: OutputListener, command: RemoteCommand) -> bool:
    """Send a container's output until it ends."""
    async with contextlib.aclosing(listener.output()) as pieces:
        async for stream, data in pieces:
            if stream in command.options.outputs:
                await command.send(stream, data)
    return True


async def _feed(command: RemoteCommand, execution: "Execution | AttachSession") -> None:
    """Feed a command with the client's input until the client disconnects."""
    async with contextlib.aclosing(command.input()) as messages:
        async for message in messages:
            if message is None:
                execution.end_input()
            elif isinstance(message, tuple):
                execution.resize(*message)
            else:
                await execution.write(message)
