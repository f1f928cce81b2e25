"""The master: assign tasks, monitor workers and servers, evaluate during training, and complete the job.

    python -m parameter_server.master --trainer model.py --records train.npy --state-dir state --workers 2

With ``--pods FILE`` it starts workers and servers as pods and replaces lost ones; otherwise you start them
yourself. It may die at any time: a new master reads the state in ``--state-dir`` and continues, while
workers and servers wait for it. It loads neither torch nor the user's file.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from . import channels, protocol_pb2, protocol_pb2_grpc, settings, state_file
from .evaluation import Evaluation
from .events import EventLogger, set_up_log
from .job import JobState
from .process_manager import ProcessManager
from .protocol_pb2 import (
    Failure,
    JoinRequest,
    Left,
    Nothing,
    Orders,
    PinRequest,
    Progress,
    Pulse,
    Registration,
    SaveRequest,
)
from .records import Records

TICK_SECONDS = 0.1
MAX_WAIT_SECONDS = 0.2  # maximum delay of a response to a waiting worker, which may have to leave
ALIVE_SECONDS = 5.0  # a worker that has reported within this time is alive
STALENESS_SECONDS = 2.0
SAVE_INTERVAL = 0.2  # seconds between two writes of the state
FINISH_SECONDS = 10.0
FULL_VOLUME_SECONDS = 5.0  # between two attempts to write to a full volume
SAVE_SECONDS = 120.0
SUPERSEDED = 3  # exit status: another master continues the job, which has not failed

log = logging.getLogger(__name__)


class MasterService(protocol_pb2_grpc.MasterServicer):
    """The master's gRPC service for workers and servers."""

    def __init__(self, job: JobState, processes: ProcessManager | None) -> None:
        self._job, self._processes = job, processes
        self._woken = asyncio.Event()
        self.informed: set[int] = set()  # workers that know that the job is complete

    async def Join(self, request: JoinRequest, context: grpc.aio.ServicerContext) -> protocol_pb2.Job:
        if request.role == "worker":
            self._job.mark_alive(request.index)
        return protocol_pb2.Job(settings=self._job.settings.to_json())

    async def RegisterServer(self, request: Registration, context: grpc.aio.ServicerContext) -> Nothing:
        if not 0 <= request.index < len(self._job.servers):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the job has no server {request.index}")
        self._job.register(request)
        return Nothing()

    async def Heartbeat(self, request: Pulse, context: grpc.aio.ServicerContext) -> Orders:
        if request.role == "ps":
            known = self._job.pulse(request.index, request.incarnation)
            replaced = request.incarnation in self._job.replaced
            return Orders(unknown=not known and not replaced, over=replaced)
        return Orders(over=self._job.mark_alive(request.index).gone)

    async def Servers(self, request: Nothing, context: grpc.aio.ServicerContext) -> protocol_pb2.ServerList:
        with self._job.lock:
            known = self._job.servers
            return protocol_pb2.ServerList(
                addresses=[server.address if server else "" for server in known],
                incarnations=[server.incarnation if server else 0 for server in known],
            )

    async def Tasks(
        self, requests: AsyncIterator[Progress], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[protocol_pb2.Task]:
        async for request in requests:
            await self._wait_for_servers(request, context)
            task = self._job.next_task(request)
            if task.kind == protocol_pb2.WAIT:
                task = await self._wait_for_task(request.worker)
            if task.kind == protocol_pb2.OVER:
                self.informed.add(request.worker)
                self._job.changed.set()
            yield task

    async def Report(self, request: Progress, context: grpc.aio.ServicerContext) -> Left:
        await self._wait_for_servers(request, context)
        return Left(minibatches=self._job.report(request))

    async def Fail(self, request: Failure, context: grpc.aio.ServicerContext) -> Nothing:
        if request.role == "worker":
            self._job.lost(request.index, "it failed")
        if self._processes is not None:
            self._processes.record_failure(request.role, request.index, request.reason)
        else:
            self._job.fail("error", f"{request.role} {request.index} failed: {request.reason}", most=0)
        return Nothing()

    async def _wait_for_task(self, worker: int) -> protocol_pb2.Task:
        """Try again after each iteration of the master's loop, or answer WAIT after ``MAX_WAIT_SECONDS``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                while True:
                    await self._woken.wait()
                    task = self._job.next_task(Progress(worker=worker))
                    if task.kind != protocol_pb2.WAIT:
                        return task
        return protocol_pb2.Task(kind=protocol_pb2.WAIT)

    def wake(self) -> None:
        """Wake the workers that wait for a task; called in the thread of the event loop."""
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    async def _wait_for_servers(self, request: Progress, context: grpc.aio.ServicerContext) -> None:
        """Make the worker retry its report later, as a new master does not know the servers' state yet."""
        if request.minibatches and not self._job.ready and not self._job.over:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not every server has registered yet")


class ControlLoop:
    """The master's control loop, ten times a second.

    Args:
        job: Its state.
        file: Its file on the volume.
        processes: Manages the processes; None if they are started elsewhere.
        log_event: Logs events.
    """

    def __init__(
        self,
        job: JobState,
        file: state_file.StateFile,
        processes: ProcessManager | None,
        log_event: EventLogger,
    ) -> None:
        self._job, self._file, self._processes, self._log_event = job, file, processes, log_event
        self._stubs: dict[str, tuple[grpc.Channel, protocol_pb2_grpc.ServerStub]] = {}
        self._saved_at = self._staleness_at = self._began = time.monotonic()

    def tick(self) -> None:
        """Run the actions that are due.

        Raises:
            state_file.Superseded: Another master has taken over.
        """
        self._save()
        if self._processes is not None:
            self._processes.tick()
        self._job.silent(self._job.settings.silent_seconds)
        if self._job.ready and not self._job.over:
            with suppress(grpc.RpcError, LookupError):  # a server is being replaced; retry in the next tick
                self._close_epochs()
                self._evaluate()
        if time.monotonic() - self._staleness_at > STALENESS_SECONDS:
            self._log_staleness()

    def end(self, workers: set[int]) -> None:
        """Stop the servers, delete the pods that cannot be reached, and save the state.

        Args:
            workers: The workers that know that the job is complete.
        """
        self._log_staleness()
        reached = {(settings.WORKER, index) for index in workers}
        for index, server in enumerate(self._job.servers):
            if server is not None:
                with suppress(grpc.RpcError):
                    self._stub(server.address).End(Nothing(), timeout=5)
                    reached.add((settings.SERVER, index))
        if self._processes is not None:
            self._processes.delete_unreached(reached=reached)
        self._file.save(self._job.snapshot())

    def _save(self) -> None:
        if time.monotonic() - self._saved_at < SAVE_INTERVAL:
            return
        self._saved_at = time.monotonic()
        try:
            self._file.save(self._job.snapshot())
        except OSError as error:  # the volume is full
            self._log_event("broken", what="state", reason=str(error))
            self._saved_at += FULL_VOLUME_SECONDS

    def _close_epochs(self) -> None:
        """Close a complete epoch once every server has saved it to the disk."""
        job = self._job
        while not job.ledger.over and job.ledger.complete(job.ledger.first_open):
            number = job.ledger.first_open
            saved = [
                self._stub(server.address)
                .Save(SaveRequest(first_open=number), timeout=SAVE_SECONDS)
                .incarnation
                for server in self._registered_servers()
            ]
            with job.lock:
                same = [server.incarnation for server in self._registered_servers()] == saved
                if not same or not job.ledger.complete(number):
                    return  # a server was replaced meanwhile and lacks updates
                job.ledger.close(number)
            seconds = time.monotonic() - self._began
            self._log_event("epoch", epoch=number, records=job.records, seconds=round(seconds, 3))
            self._began = time.monotonic()
            self._log_staleness()

    def _evaluate(self) -> None:
        """Start an evaluation that is due, and finish a completed one."""
        job = self._job
        running = job.evaluation
        if running is not None and running.done:
            with job.lock:
                job.evaluation = None
                if job.ledger.over and running.step == job.ledger.steps:
                    job.evaluated = True
            self._log_result(running)
            if not job.evaluated:
                self._unpin(running.number)
        elif running is None and (job.evaluation_due or (job.ledger.over and not job.evaluated)):
            self._begin_evaluation()

    def _log_result(self, evaluation: Evaluation) -> None:
        if self._job.settings.mode == "prediction":
            self._log_event("predictions", images=evaluation.records)
            log.info("Predictions for %d records", evaluation.records)
            return
        result = evaluation.result()
        self._log_event("eval", version=evaluation.step, **result)
        figures = ", ".join(f"{name} = {value}" for name, value in result.items())
        when = f" at step {evaluation.step}" if self._job.settings.epochs else ""
        log.info("Evaluation%s: %s", when, figures)

    def _begin_evaluation(self) -> None:
        """Have every server pin its parameters, and assign the test records."""
        job = self._job
        with job.lock:
            job.evaluations += 1
            job.evaluation_due = False
            number, step = job.evaluations, job.ledger.steps
            servers = self._registered_servers()
        try:
            for server in servers:
                self._stub(server.address).Pin(PinRequest(pin=number), timeout=channels.CALL_SECONDS)
        except grpc.RpcError:
            job.evaluation_due = True
            raise
        with job.lock:
            incarnations = [server.incarnation for server in self._registered_servers()]
            if incarnations != [server.incarnation for server in servers]:
                job.evaluation_due = True
            elif job.test_records:
                size = job.settings.minibatch * job.settings.minibatches_per_task
                job.evaluation = Evaluation(number, records=job.test_records, size=size, step=step)
            elif job.ledger.over:
                job.evaluated = True

    def _unpin(self, number: int) -> None:
        for server in self._registered_servers():
            self._stub(server.address).Unpin(PinRequest(pin=number), timeout=channels.CALL_SECONDS)

    def _registered_servers(self) -> list[Any]:
        servers = list(self._job.servers)
        if None in servers:
            raise LookupError("a server has not registered")
        return servers

    def _stub(self, address: str) -> protocol_pb2_grpc.ServerStub:
        if address not in self._stubs:
            channel = channels.connect(address)
            self._stubs[address] = (channel, protocol_pb2_grpc.ServerStub(channel))
        return self._stubs[address][1]

    def _log_staleness(self) -> None:
        self._staleness_at = time.monotonic()
        staleness = self._job.pop_staleness()
        if staleness is not None:
            self._log_event("staleness", **staleness)


def recover(job: JobState, folder: Path, log_event: EventLogger) -> state_file.StateFile:
    """Continue from the previous master's state, if there is one; begin the next file.

    Raises:
        SystemExit: It belongs to another job.
        state_file.Superseded: Another master was faster.
    """
    number, state = state_file.read(folder)
    if state is not None:
        try:
            job.recover(state)
        except (ValueError, KeyError) as error:
            message = f"the state in {folder} does not fit: {error}; use another --state-dir"
            raise SystemExit(message) from error
        log_event("resume", state=number, epoch=job.ledger.first_open, steps=job.ledger.steps)
    return state_file.StateFile(folder)


def run_job(options: argparse.Namespace, job_settings: settings.JobSettings, log_event: EventLogger) -> int:
    """Run the job to completion; return the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    test = len(Records(Path(job_settings.test_records))) if job_settings.test_records else 0
    records = len(Records(Path(job_settings.records)))
    with ExitStack() as stack:
        pods = None
        if options.pods is not None:
            from .pods import in_this_pod  # imports the Kubernetes client

            pods = stack.enter_context(in_this_pod(options.pods, job_settings.job))
            # A folder for each launch, so that it does not read an older state.
            job_settings = replace(job_settings, state_dir=f"{job_settings.state_dir}/{pods.owner_uid}")
        job = JobState(job_settings, records, test, log_event)
        file = recover(job, Path(job_settings.state_dir), log_event)
        processes = None if pods is None else ProcessManager(job, pods, log_event)
        service = MasterService(job, processes)
        port, wake = stack.enter_context(serve(service, options.port))
        log_event(
            "start",
            port=port,
            host=socket.gethostname(),
            pid=os.getpid(),
            records=job.records,
            test_records=test,
            tasks=job.ledger.tasks,
            workers=job_settings.workers,
            servers=job_settings.servers,
        )
        if processes is not None:
            processes.start()
        loop = ControlLoop(job, file, processes, log_event)
        while not job.over:
            job.changed.wait(TICK_SECONDS)
            job.changed.clear()
            if stop.is_set():
                file.save(job.snapshot())
                return 128 + signal.SIGTERM
            loop.tick()
            wake()
        _wait_for_workers(job, service)
        loop.end(service.informed)
    if job.failed:
        log_event("failed", reason=job.failed)
        return 1
    log_event("end", records=job.records * job_settings.epochs, steps=job.ledger.steps)
    return 0


@contextmanager
def serve(service: MasterService, port: int) -> Iterator[tuple[int, Callable[[], object]]]:
    """Serve calls in a thread; yield the port, and a function that wakes the workers that wait for a task.

    An event loop holds a stream of each worker without a thread for each, and no call blocks.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="calls", daemon=True)
    thread.start()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=channels.OPTIONS)
        protocol_pb2_grpc.add_MasterServicer_to_server(service, server)
        bound = server.add_insecure_port(f"0.0.0.0:{port}")
        await server.start()
        return server, bound

    server, bound = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield bound, lambda: loop.call_soon_threadsafe(service.wake)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(grace=1), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _wait_for_workers(job: JobState, service: MasterService) -> None:
    """Wait until every running worker knows that the job is complete."""
    deadline = time.monotonic() + FINISH_SECONDS
    while time.monotonic() < deadline:
        recent = job.clock() - ALIVE_SECONDS
        living = {number for number, record in job.workers.items() if not record.gone and record.at > recent}
        if living <= service.informed:
            return
        job.changed.wait(TICK_SECONDS)
        job.changed.clear()


def main(argv: list[str] | None = None) -> None:
    """Parse the flags, and run the job."""
    parser = argparse.ArgumentParser(description="Run a job with parameter servers.")
    settings.add_flags(parser)
    parser.add_argument("--port", type=int, default=settings.PORT)
    parser.add_argument("--pods", type=Path, help="a folder with worker.json and ps.json")
    options = parser.parse_args(argv)
    job_settings = settings.from_flags(options)
    log_event = EventLogger("master", 0, job_settings.workers)
    set_up_log(job_settings.log_level)
    try:
        status = run_job(options, job_settings, log_event)
    except state_file.Superseded as error:
        log_event("superseded", reason=str(error))
        sys.stderr.write(f"{error}; this master ends\n")
        raise SystemExit(SUPERSEDED) from error
    raise SystemExit(status)


if __name__ == "__main__":
    main()
