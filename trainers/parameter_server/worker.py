"""A worker: get tasks from the master, compute gradients, push them to the servers.

    python -m parameter_server.worker --master localhost:50001 --index 0

While the servers apply one minibatch's gradient, the worker computes the next one; it loads the newest
parameters from their responses between two minibatches. In synchronous mode it waits for each response. A
worker may die at any time; on SIGTERM it exits after the current minibatch, and returns the rest of its task.
"""

import argparse
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import torch

from . import channels, checkpoints, memory, protocol_pb2, protocol_pb2_grpc, user_model
from .connections import PendingPush, ServerConnections
from .events import EventLogger, set_up_log
from .protocol_pb2 import DUPLICATE, STALE, Failure, JoinRequest, Progress, Pulse, Score
from .records import Records
from .replica import Replica
from .settings import JobSettings

PULSE_SECONDS = 1.0
REPORT_SECONDS = 1.0
CURRENT = 0  # the current training parameters; other numbers are those of evaluations

log = logging.getLogger(__name__)
T = TypeVar("T")


class ParameterServerWorker:
    """Process tasks until there are none left.

    Args:
        master: A stub.
        tasks: Its tasks.
        settings: The job's.
        index: This worker's index.
        stop: Set when the worker must leave.
    """

    def __init__(
        self,
        master: protocol_pb2_grpc.MasterStub,
        tasks: channels.StreamedCalls,
        settings: JobSettings,
        *,
        index: int,
        stop: threading.Event,
    ) -> None:
        self._master, self._tasks, self._settings = master, tasks, settings
        self._index, self._stop = index, stop
        self._log_event = EventLogger("worker", index, settings.workers)
        user = user_model.load(settings)
        torch.manual_seed(settings.seed)
        self._replica = Replica(user, settings)
        self._servers = ServerConnections(master, self._replica.layouts, stop=stop)
        self._train = Records(Path(settings.records))
        self._test = Records(Path(settings.test_records)) if settings.test_records else None
        self._loaded_pin: int | None = None  # the number of the parameters in the replica
        self._sent: tuple[int, PendingPush] | None = None  # a minibatch with pending responses
        self._was_stale = False
        self._acknowledged: list[tuple[int, tuple[int, ...]]] = []
        self._staleness: list[int] = []
        self._reported = time.monotonic()
        self._steps, self._since, self._images = 0, time.perf_counter(), 0

    def run(self) -> None:
        """Request tasks and process them."""
        progress = Progress(worker=self._index)
        while True:
            task = self._call(self._tasks, progress)
            progress = Progress(worker=self._index)
            if task.kind == protocol_pb2.OVER:
                self._tasks.close()
                return
            if task.kind == protocol_pb2.TRAIN:
                progress = self._train_task(task)
            elif task.kind != protocol_pb2.WAIT:  # the master has already waited
                progress = self._pinned_task(task)
            if self._stop.is_set():
                progress.leaving = True
                channels.call_with_retry(self._master.Report, progress, seconds=10)
                self._log_event("leave", steps=self._steps)
                return

    # Training

    def _train_task(self, task: protocol_pb2.Task) -> Progress:
        """Process a task; return its report."""
        if self._loaded_pin != CURRENT:
            self._replica.load(self._servers.pull(CURRENT))
            self._loaded_pin = CURRENT
        work = deque(task.minibatches)
        while work and not self._stop.is_set():
            began = time.perf_counter()
            minibatch = work.popleft()
            self._step(task.epoch, minibatch, work)
            if time.monotonic() - self._reported > REPORT_SECONDS:
                left = set(self._call(self._master.Report, self._progress(task.epoch)).minibatches)
                busy = {self._sent[0]} if self._sent else set()
                again = left - set(work) - busy  # a restarted server lacks them
                work = deque(minibatch for minibatch in work if minibatch in left)
                work.extend(sorted(again & set(task.minibatches)))
            if not work:
                self._finish_push(work)
            self._stop.wait(max(0.0, self._settings.step_seconds - (time.perf_counter() - began)))
        self._finish_push(work)
        return self._progress(task.epoch)

    def _step(self, epoch: int, minibatch: int, work: deque[int]) -> None:
        """Compute a gradient, process the responses to the previous one, and push this one."""
        settings = self._settings
        start = minibatch * settings.minibatch
        end = min(start + settings.minibatch, len(self._train))
        versions, incarnations = self._servers.versions, self._servers.incarnations
        loss = self._replica.compute(self._train.read(start, end))
        packed = self._replica.gradients()
        self._finish_push(work)
        sent = self._servers.push(epoch, minibatch, packed, versions=versions, incarnations=incarnations)
        self._sent = (minibatch, sent)
        self._steps, self._images = self._steps + 1, self._images + end - start
        if self._steps % settings.log_every == 1 or settings.log_every == 1:
            self._log_step(epoch, loss)
        alone = settings.grads_to_wait > 1 or settings.staleness_bound < 2
        if alone or self._was_stale:
            self._finish_push(work)

    def _finish_push(self, work: deque[int]) -> None:
        """Wait for the responses to the last push, and load the parameters in them."""
        if self._sent is None:
            return
        (minibatch, sent), self._sent = self._sent, None
        answers = self._servers.wait(sent)
        self._replica.load([answer.tensors for answer in answers])
        self._was_stale = any(answer.verdict == STALE for answer in answers)
        if self._was_stale:
            work.append(minibatch)  # recompute with newer parameters
        else:
            self._acknowledged.append((minibatch, self._servers.incarnations))
            if not any(answer.verdict == DUPLICATE for answer in answers):
                self._staleness.append(max(answer.staleness for answer in answers))

    def _progress(self, epoch: int) -> Progress:
        """Return the minibatches acknowledged since the last report, by the servers' current processes."""
        now = self._servers.incarnations
        done = [minibatch for minibatch, then in self._acknowledged if then == now]
        progress = Progress(
            worker=self._index, epoch=epoch, minibatches=done, incarnations=now, staleness=self._staleness
        )
        self._acknowledged, self._staleness, self._reported = [], [], time.monotonic()
        return progress

    def _log_step(self, epoch: int, loss: float) -> None:
        now = time.perf_counter()
        rate = self._images / max(1e-9, now - self._since)
        behind = self._staleness[-1] if self._staleness else 0
        self._since, self._images = now, 0
        log.info("Loss = %.5f at step %d of epoch %d", loss, self._steps, epoch)
        self._log_event(
            "step",
            step=self._steps,
            epoch=epoch,
            version=self._servers.versions[0],
            loss=round(loss, 5),
            images_per_s=round(rate, 1),
            staleness=behind,
        )

    # Evaluation, and the model at the end

    def _pinned_task(self, task: protocol_pb2.Task) -> Progress:
        """Process a task that needs pinned parameters; return its report."""
        progress = Progress(worker=self._index)
        try:
            if self._loaded_pin != task.pin:
                self._loaded_pin = None
                self._replica.load(self._servers.pull(task.pin))
                self._loaded_pin = task.pin
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            progress.pin_lost = True  # a server was restarted; the master starts again
            return progress
        if task.kind == protocol_pb2.SAVE:
            self._save()
            progress.saved = True
            return progress
        assert self._test, "the master evaluates where there are test records"
        score = Score(evaluation=task.pin, task=task.id)
        for start in range(task.start, task.end, self._settings.minibatch):
            records = self._test.read(start, min(start + self._settings.minibatch, task.end))
            if self._settings.mode == user_model.PREDICTION:
                self._replica.predict(records, self._index)
                score.images += len(records)
            else:
                self._replica.evaluate(records, score)
        progress.scores.append(score)
        return progress

    def _save(self) -> None:
        """Write the model file atomically."""
        settings = self._settings
        path = Path(settings.model_file)
        classes = settings.classes.split(",") if settings.classes else []
        content: dict[str, object] = {
            "model": Path(settings.trainer).stem,
            "dataset": settings.dataset,
            "classes": classes,
        }
        content |= {"epochs": settings.epochs, "weights": self._replica.state_dict()}
        try:
            checkpoints.write(path, content)
        except OSError as error:
            raise user_model.UserError(f"{path} cannot be written ({error}); is the volume full?") from error

    def _call(self, method: Callable[..., T], request: object) -> T:
        return channels.call_with_retry(method, request, stop=self._stop.is_set)


def pulse(
    master: protocol_pb2_grpc.MasterStub, tasks: channels.StreamedCalls, *, index: int, stop: threading.Event
) -> None:
    """Send a heartbeat to the master each second, even during a long minibatch.

    If the master does not answer, the stream is closed and the task requested by another one.
    """
    while not stop.wait(PULSE_SECONDS):
        try:
            orders = master.Heartbeat(Pulse(role="worker", index=index), timeout=channels.CALL_SECONDS)
        except grpc.RpcError:
            tasks.close()
            continue  # the master is being restarted
        if orders.over:
            stop.set()


def main(argv: list[str] | None = None) -> None:
    """Get the job's settings from the master, and process its tasks."""
    parser = argparse.ArgumentParser(description="Compute gradients.")
    parser.add_argument("--master", required=True, help="host:port")
    parser.add_argument("--index", type=int, required=True)
    options = parser.parse_args(argv)
    memory.keep_freed_memory()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with channels.connect(options.master) as channel:
        master = protocol_pb2_grpc.MasterStub(channel)
        host, pid = socket.gethostname(), os.getpid()
        request = JoinRequest(role="worker", index=options.index, host=host, pid=pid)
        settings = None
        try:
            settings = JobSettings.from_json(
                channels.call_with_retry(master.Join, request, stop=stop.is_set).settings
            )
            log_event = EventLogger("worker", options.index, settings.workers)
            set_up_log(settings.log_level)
            tasks, mine = channels.StreamedCalls(master.Tasks), {"index": options.index, "stop": stop}
            threading.Thread(target=pulse, args=(master, tasks), kwargs=mine, daemon=True).start()
            worker = ParameterServerWorker(master, tasks, settings, **mine)
            log_event("start", host=host, pid=pid, threads=torch.get_num_threads())
            worker.run()
            log_event("end")
        except user_model.UserError as error:
            log_event("failed", reason=str(error))
            failure = Failure(role="worker", index=options.index, reason=str(error))
            channels.call_with_retry(master.Fail, failure, seconds=30)
            raise SystemExit(1) from None
        except channels.PeerUnavailable as error:
            if not stop.is_set():
                raise SystemExit(f"the master does not answer: {error}") from error


if __name__ == "__main__":
    main()
