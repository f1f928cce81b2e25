"""A worker's connections to the servers: push to all, pull from all, and retry after a restart."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from . import channels, protocol_pb2_grpc
from .protocol_pb2 import Gradients, Nothing, PullRequest, Shard, Tensor

RETRY_SECONDS = 0.2


@dataclass
class PendingPush:
    """A push in flight: for each server the request and the pending response."""

    requests: list[Gradients]
    futures: list[grpc.Future]


class ServerConnections:
    """Connections to every server.

    Args:
        master: A stub, used to look up the servers' addresses.
        layouts: For each server, its part of the model.
        stop: Set to stop waiting.

    Attributes:
        versions: Each server's version of the last received parameters.
        incarnations: The incarnation of each server that sent them.
    """

    def __init__(
        self, master: protocol_pb2_grpc.MasterStub, layouts: Sequence[int], *, stop: threading.Event
    ) -> None:
        self._master, self._layouts, self._stop = master, layouts, stop
        count = len(layouts)
        self._addresses = [""] * count
        self._channels: list[grpc.Channel | None] = [None] * count
        self._stubs: list[Any] = [None] * count
        self.versions: tuple[int, ...] = (0,) * count
        self.incarnations: tuple[int, ...] = (0,) * count

    def pull(self, pin: int) -> list[Sequence[Tensor]]:
        """Return every shard's tensors.

        Raises:
            grpc.RpcError: A server rejects it, as it has no such pin or another model.
            channels.PeerUnavailable: A server has not answered for too long.
        """
        self._refresh_addresses()
        requests = [PullRequest(pin=pin, layout=layout) for layout in self._layouts]
        answers = [self._call_with_retry(index, "Pull", request) for index, request in enumerate(requests)]
        if pin == 0:
            self._record_versions(answers)
        return [answer.tensors for answer in answers]

    def push(
        self,
        epoch: int,
        minibatch: int,
        packed: Sequence[list[Tensor]],
        *,
        versions: Sequence[int],
        incarnations: Sequence[int],
    ) -> PendingPush:
        """Send a gradient to every server; return at once."""
        requests = [
            Gradients(
                epoch=epoch, minibatch=minibatch, version=version, incarnation=incarnation, tensors=tensors
            )
            for tensors, version, incarnation in zip(packed, versions, incarnations, strict=True)
        ]
        futures = [
            stub.Push.future(request, timeout=channels.CALL_SECONDS)
            for stub, request in zip(self._stubs, requests, strict=True)
        ]
        return PendingPush(requests, futures)

    def wait(self, sent: PendingPush) -> list[Shard]:
        """Return all responses; repeat a push without one, as a server applies it only once.

        Raises:
            grpc.RpcError: A server rejects it.
            channels.PeerUnavailable: A server has not answered for too long.
        """
        answers = []
        for index, future in enumerate(sent.futures):
            try:
                answers.append(future.result())
            except grpc.RpcError as error:
                if error.code() not in channels.TRANSIENT:
                    raise
                answers.append(self._call_with_retry(index, "Push", sent.requests[index]))
        self._record_versions(answers)
        return answers

    def _call_with_retry(self, index: int, name: str, request: PullRequest | Gradients) -> Shard:
        def call(request: object, *, timeout: float) -> Shard:
            try:
                return getattr(self._stubs[index], name)(request, timeout=timeout)
            except grpc.RpcError as error:
                if error.code() in channels.TRANSIENT:
                    self._refresh_addresses()  # its address may have changed
                raise

        return channels.call_with_retry(call, request, stop=self._stop.is_set)

    def _refresh_addresses(self) -> None:
        """Get the servers' addresses from the master; wait until it knows all of them."""
        while True:
            answer = channels.call_with_retry(self._master.Servers, Nothing(), stop=self._stop.is_set)
            if len(answer.addresses) == len(self._stubs) and all(answer.addresses):
                break
            if self._stop.wait(RETRY_SECONDS):
                raise channels.PeerUnavailable("the servers have not registered")
        for index, address in enumerate(answer.addresses):
            if address != self._addresses[index]:
                previous, channel = self._channels[index], channels.connect(address)
                if previous is not None:
                    previous.close()
                self._channels[index] = channel
                self._stubs[index] = protocol_pb2_grpc.ServerStub(channel)
                self._addresses[index] = address

    def _record_versions(self, answers: Sequence[Shard]) -> None:
        self.versions = tuple(answer.version for answer in answers)
        self.incarnations = tuple(answer.incarnation for answer in answers)
