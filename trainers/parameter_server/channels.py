"""gRPC channels and calls that are retried until the restarted peer answers."""

import random
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A killed process is replaced within a second or two; gRPC's default backoff would grow longer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),  # two processes on one port would share its calls
)
# INTERNAL: the user's optimizer raised in a server, which exits, and is replaced or fails the job.
TRANSIENT = tuple(
    getattr(grpc.StatusCode, name) for name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL")
)
CALL_SECONDS = 20
GIVE_UP_SECONDS = 900


class PeerUnavailable(Exception):
    """The peer did not answer within the time limit."""


T = TypeVar("T")


class StreamEnded(grpc.RpcError):
    """The peer has closed a stream properly, as it does when it exits."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the stream has ended"


class StreamedCalls:
    """Calls over a shared stream, which cost a third of unary calls; reopened after an error.

    Args:
        method: A stub's method that answers each request of a stream with one response.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method: Callable[..., Any] = method
        self._call: Any = None  # grpc's
        self._requests: SimpleQueue[object] = SimpleQueue()

    def __call__(self, request: object, *, timeout: float | None = None) -> Any:
        """Send a request and return its response; another thread may limit the time by `close`.

        Raises:
            grpc.RpcError: There is no response; a repeated request opens another stream.
        """
        call = self._call
        if call is None:
            self._requests = SimpleQueue()
            call = self._call = self._method(iter(self._requests.get, None))
        self._requests.put(request)
        try:
            return next(call)
        except StopIteration:
            self.close()
            raise StreamEnded from None
        except grpc.RpcError:
            self.close()
            raise

    def close(self) -> None:
        """End the stream; a request that waits for its response fails."""
        call, self._call = self._call, None
        self._requests.put(None)
        if call is not None:
            call.cancel()


def connect(address: str) -> grpc.Channel:
    """Return a channel; nothing is sent yet."""
    return grpc.insecure_channel(address, options=OPTIONS)


def call_with_retry(
    method: Callable[..., T],
    request: object,
    *,
    seconds: float = GIVE_UP_SECONDS,
    stop: Callable[[], bool] | None = None,
) -> T:
    """Retry a call until it is answered.

    Args:
        method: A stub's method.
        request: Repeated unchanged, as all calls here are idempotent.
        seconds: The time limit.
        stop: Called between attempts; True ends them.

    Raises:
        PeerUnavailable: No answer within the time limit, or ``stop`` returned True.
        grpc.RpcError: The peer answered with an error.
    """
    deadline, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            return method(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            if error.code() not in TRANSIENT:
                raise
            if time.monotonic() > deadline or (stop is not None and stop()):
                raise PeerUnavailable(f"no answer: {error.details()}") from error
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(1.0, pause * 2)
