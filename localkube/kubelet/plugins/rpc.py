"""gRPC on the Unix sockets of a node's directory, whose paths may be longer than the kernel allows."""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localkube.runtime.path_resolution import opened

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

SECONDS = 10.0


def plugin_messages() -> Any:
    """Import the module of the plugins' messages, which few clusters need."""
    from localkube.kubelet.plugins import messages_pb2

    return messages_pb2


class PluginError(Exception):
    """A plugin cannot be reached, or refuses; the message is the plugin's."""


class PluginClient:
    """Calls the methods of one service on a socket.

    Args:
        directory: The directory of the plugins' sockets.
        endpoint: The plugin's socket beneath it; no other socket of the machine is opened.
    """

    def __init__(self, directory: Path, endpoint: str, *, service: str) -> None:
        import grpc

        self._service, self._errors = service, grpc.aio.AioRpcError
        with opened(directory, endpoint) as socket:
            self._socket = os.dup(socket)
        address = f"unix:/proc/self/fd/{self._socket}"
        options = [
            ("grpc.default_authority", "localhost"),  # else the escaped path, which servers in Go refuse
            (
                "grpc.use_local_subchannel_pool",
                1,
            ),  # else a former socket's connection of this number
        ]
        self._channel = grpc.aio.insecure_channel(address, options=options)

    async def call(
        self, method: str, request: "Message", answer: "type[Message]", *, seconds: float = SECONDS
    ) -> Any:
        with self._refusals():
            return await self._channel.unary_unary(*self._method(method, answer))(request, timeout=seconds)

    async def stream(self, method: str, request: "Message", answer: "type[Message]") -> AsyncIterator[Any]:
        with self._refusals():
            async for message in self._channel.unary_stream(*self._method(method, answer))(request):
                yield message

    def _method(self, method: str, answer: "type[Message]") -> tuple[str, Any, Any]:
        return f"/{self._service}/{method}", lambda message: message.SerializeToString(), answer.FromString

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise PluginError(f"rpc error: code = {error.code().name} desc = {error.details()}") from error

    @property
    def is_refused(self) -> bool:
        """Whether nothing listens on the socket; tries to connect if necessary."""
        return self._channel.get_state(try_to_connect=True).name == "TRANSIENT_FAILURE"

    async def close(self) -> None:
        await self._channel.close()
        os.close(self._socket)


class PluginServer:
    """Serves one method on a socket.

    Args:
        socket: The path; an existing socket is replaced.
        handle: Answers a request; a PluginError that it raises is sent as the refusal.
    """

    def __init__(
        self,
        socket: Path,
        *,
        service: str,
        method: str,
        request: "type[Message]",
        handle: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self._socket, self._service, self._method = socket, service, method
        self._request, self._handle = request, handle

    async def start(self) -> None:
        import grpc

        async def answer(message: "Message", context: "grpc.aio.ServicerContext") -> Any:
            try:
                return await self._handle(message)
            except PluginError as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

        handler = grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=self._request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        self._server = grpc.aio.server()
        generic = grpc.method_handlers_generic_handler(self._service, {self._method: handler})
        self._server.add_generic_rpc_handlers((generic,))
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._directory = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._server.add_insecure_port(f"unix:/proc/self/fd/{self._directory}/{self._socket.name}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=None)
        os.close(self._directory)
