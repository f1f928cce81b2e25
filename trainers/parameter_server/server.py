"""A parameter server: one shard of the model, behind gRPC, with checkpoints.

    python -m parameter_server.server --master localhost:50001 --index 0

It gets the job's settings from the master, loads its shard of the user's model (from its newest checkpoint,
if there is one) and reports the minibatches in it to the master. Minibatches that the checkpoint lacks are
then assigned again, and the other servers recognise them: none counts twice anywhere, and none is missing.
"""

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import torch

from . import channels, checkpoints, initial, memory, protocol_pb2, protocol_pb2_grpc, shards, user_model
from .events import EventLogger
from .protocol_pb2 import (
    Applied,
    Failure,
    Gradients,
    JoinRequest,
    Nothing,
    PinRequest,
    PullRequest,
    Pulse,
    Registration,
    Saved,
    SaveRequest,
)
from .settings import JobSettings
from .shard import Shard

PULSE_SECONDS = 0.5


class ShardService(protocol_pb2_grpc.ServerServicer):
    """A server's gRPC service for workers and the master."""

    def __init__(self, shard: Shard, saver: "ShardCheckpoints", stop: threading.Event) -> None:
        self._shard, self._checkpoints, self._stop = shard, saver, stop
        self.failure: user_model.UserError | None = None
        self.ready = threading.Event()  # set once the master knows the shard's minibatches

    def Pull(self, request: PullRequest, context: grpc.ServicerContext) -> protocol_pb2.Shard:
        self._check(context)
        if request.layout != self._shard.layout:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "the worker has partitioned the model differently"
            )
        with self._shard.lock:
            try:
                version, tensors = self._shard.read(request.pin)
            except KeyError:
                context.abort(grpc.StatusCode.NOT_FOUND, f"there is no pin {request.pin}")
        return protocol_pb2.Shard(version=version, incarnation=self._shard.incarnation, tensors=tensors)

    def Push(self, request: Gradients, context: grpc.ServicerContext) -> protocol_pb2.Shard:
        self._check(context)
        shard = self._shard
        with shard.lock:
            try:
                verdict, behind = shard.push(
                    request.epoch,
                    request.minibatch,
                    version=request.version,
                    incarnation=request.incarnation,
                    tensors=request.tensors,
                )
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except user_model.UserError as error:
                self.failure = error
                self.ready.clear()
                self._stop.set()
                context.abort(grpc.StatusCode.INTERNAL, "the optimizer raises")
            version, tensors = shard.read()
        self._checkpoints.notify(version)
        return protocol_pb2.Shard(
            verdict=verdict,
            version=version,
            incarnation=shard.incarnation,
            staleness=behind,
            tensors=tensors,
        )

    def Pin(self, request: PinRequest, context: grpc.ServicerContext) -> Nothing:
        self._check(context)
        self._shard.pin(request.pin)
        return Nothing()

    def Unpin(self, request: PinRequest, context: grpc.ServicerContext) -> Nothing:
        self._shard.unpin(request.pin)
        return Nothing()

    def Save(self, request: SaveRequest, context: grpc.ServicerContext) -> Saved:
        self._check(context)
        try:
            with self._shard.lock:
                self._shard.close(request.first_open)
            version = self._checkpoints.save(flush=True)
        except OSError as error:
            self._checkpoints.log_failure(error)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the checkpoint cannot be written: {error}")
        return Saved(version=version, incarnation=self._shard.incarnation)

    def End(self, request: Nothing, context: grpc.ServicerContext) -> Nothing:
        self._stop.set()
        return Nothing()

    def _check(self, context: grpc.ServicerContext) -> None:
        if not self.ready.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "this server is not ready yet")


class ShardCheckpoints:
    """Write checkpoints in the background: the shard is locked only while it is copied.

    Args:
        shard: The shard to save.
        folder: The target folder.
        every: Updates between two checkpoints.
        log_event: Logs the saves.
    """

    def __init__(self, shard: Shard, folder: Path, *, every: int, log_event: EventLogger) -> None:
        self._shard, self._folder, self._every, self._log_event = shard, folder, every, log_event
        self._due = threading.Event()
        self._saving = threading.Lock()
        self._saved = shard.version
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread that writes when a checkpoint is due."""
        self._thread.start()

    def notify(self, version: int) -> None:
        """Notify the saver of the current version."""
        if version - self._saved >= self._every:
            self._due.set()

    def save(self, *, flush: bool = False) -> int:
        """Write a checkpoint now; return its version.

        Raises:
            OSError: Writing failed.
        """
        with self._saving:
            began = time.perf_counter()
            with self._shard.lock:
                if flush:
                    self._shard.flush()
                state = self._shard.state()
            waited = time.perf_counter() - began
            version = self._saved = state["version"]
            size = checkpoints.save(self._folder, version, state)
            seconds = round(time.perf_counter() - began, 4)
            file = checkpoints.path_of(self._folder, version).name
            self._log_event(
                "checkpoint", version=version, file=file, bytes=size, seconds=seconds, waited=round(waited, 5)
            )
            return version

    def log_failure(self, error: OSError) -> None:
        """Log that a checkpoint could not be written."""
        self._log_event("broken", what="checkpoint", reason=str(error))

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            try:
                self.save()
            except OSError as error:
                self.log_failure(error)
                time.sleep(1)  # do not retry at each update if the disk is full


def build(settings: JobSettings, index: int) -> Shard:
    """Return this server's shard of the user's untrained model.

    Raises:
        user_model.UserError: The user's file raises.
    """
    user = user_model.load(settings)
    try:
        torch.manual_seed(settings.seed)  # the same first weights in every process
        model = user.model()
        if settings.init:
            initial.load(model, Path(settings.init))
        groups = shards.plan(model, settings.servers)[index]
        return Shard(
            groups,
            user.optimizer,
            grads_to_wait=settings.grads_to_wait,
            staleness_bound=settings.staleness_bound,
            path=settings.trainer,
        )
    except Exception as error:
        raise user_model.UserError(user_model.explain(error, settings.trainer)) from error


def restore(shard: Shard, folder: Path) -> list[str]:
    """Load the newest checkpoint into the shard, if there is one; return the names of broken files.

    Raises:
        user_model.UserError: The checkpoint belongs to another model.
    """
    state, broken = checkpoints.load(folder)
    if state is not None:
        try:
            shard.restore(state)
        except ValueError as error:
            raise user_model.UserError(
                f"the checkpoint in {folder} does not fit the model: {error}; use another --state-dir"
            ) from error
    return broken


def serve(master: protocol_pb2_grpc.MasterStub, settings: JobSettings, *, index: int, port: int) -> None:
    """Serve a shard until the job is complete."""
    log_event = EventLogger("ps", index, settings.workers)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder = Path(settings.state_dir) / f"server-{index}"
    shard = build(settings, index)
    broken = restore(shard, folder)
    saver = ShardCheckpoints(shard, folder, every=settings.checkpoint_steps, log_event=log_event)
    service = ShardService(shard, saver, stop)
    server = grpc.server(ThreadPoolExecutor(max(8, 2 * settings.workers), "push"), options=channels.OPTIONS)
    protocol_pb2_grpc.add_ServerServicer_to_server(service, server)
    address = f"{local_address()}:{server.add_insecure_port(f'0.0.0.0:{port}')}"
    server.start()

    def register() -> None:
        with shard.lock:
            applied = [Applied(epoch=epoch, minibatches=done) for epoch, done in shard.applied().items()]
            version = shard.version
        registration = Registration(
            index=index,
            address=address,
            incarnation=shard.incarnation,
            version=version,
            restored=version > 0,
            applied=applied,
        )
        channels.call_with_retry(master.RegisterServer, registration, stop=stop.is_set)
        service.ready.set()

    if shard.version:
        log_event("resume", version=shard.version, broken=broken)
    register()
    sizes = [group.size for group in shard.groups]
    log_event(
        "start",
        address=address,
        version=shard.version,
        parameters=sum(sizes),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    saver.start()
    watch(master, shard, index=index, stop=stop, register=register)
    server.stop(grace=1).wait()
    if service.failure is not None:
        raise service.failure
    log_event("end", version=shard.version)


def watch(
    master: protocol_pb2_grpc.MasterStub,
    shard: Shard,
    *,
    index: int,
    stop: threading.Event,
    register: Callable[[], None],
) -> None:
    """Send a heartbeat to the master twice a second, until the server stops."""
    while not stop.wait(PULSE_SECONDS):
        pulse = Pulse(role="ps", index=index, incarnation=shard.incarnation)
        try:
            orders = master.Heartbeat(pulse, timeout=channels.CALL_SECONDS)
        except grpc.RpcError:
            continue  # the master is being restarted; workers continue meanwhile
        if orders.over:
            return
        if orders.unknown:
            register()


def local_address() -> str:
    """Return the address at which other pods reach this one."""
    address = os.environ.get("POD_IP")
    if address:
        return address
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def main(argv: list[str] | None = None) -> None:
    """Get the job's settings from the master, and serve the shard."""
    parser = argparse.ArgumentParser(description="Hold a shard of a model.")
    parser.add_argument("--master", required=True, help="host:port")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    options = parser.parse_args(argv)
    memory.keep_freed_memory()
    with channels.connect(options.master) as channel:
        master = protocol_pb2_grpc.MasterStub(channel)
        request = JoinRequest(role="ps", index=options.index, host=socket.gethostname(), pid=os.getpid())
        settings = JobSettings.from_json(channels.call_with_retry(master.Join, request).settings)
        try:
            serve(master, settings, index=options.index, port=options.port)
        except user_model.UserError as error:
            EventLogger("ps", options.index, settings.workers)("failed", reason=str(error))
            channels.call_with_retry(
                master.Fail, Failure(role="ps", index=options.index, reason=str(error)), seconds=30
            )
            raise SystemExit(1) from None
        except channels.PeerUnavailable as error:
            raise SystemExit(f"the master at {options.master} does not answer: {error}") from error


if __name__ == "__main__":
    main()
