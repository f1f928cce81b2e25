"""Continue training when workers join and leave, without restarting the survivors.

A trainer calls ``run(train, state)``. Each membership change starts a new round:

    rendezvous -> process group -> most advanced worker's state to all -> train(worker) -> … -> the change

A change is a failed collective (a peer was killed, hangs or is disconnected), or one on which all ranks agree
at a step boundary (a worker waits to join, or has received SIGTERM). An exception then interrupts ``train``,
the group is destroyed within the process, and the next round begins. Model, data and imports stay.

``elastic_launch.py`` starts the trainer and restarts dead workers. The same trainer also runs under plain
torchrun (one round; it dies with its peers and is restarted), and alone without a rendezvous. The store and
its record are in ``elastic_rendezvous.py`` and ``elastic_watch.py``, the state sent between workers in
``elastic_state.py``. The trainer reads and writes its checkpoints in ``load`` and ``leave``.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from elastic_rendezvous import ElasticRendezvous, RendezvousSettings, Round, RunEnded, StoreError
from elastic_state import State
from elastic_watch import PeerWatch, open_sockets
from torch import nn
from torch.distributed.elastic.rendezvous import RendezvousError

# Reasons for a new round; of several reasons for the same round, the last in this list is reported.
REASONS = ("start", "join", "leave", "store lost", "peer lost", "peer silent")
DO_NOT_RESTART = 78  # EX_CONFIG: the launcher does not restart the worker
LEFT = 128 + signal.SIGTERM
MAX_FAILED_GROUPS = 5  # in a row; after that the cause is a persistent error, not a lost peer


class Regroup(Exception):
    """This round is over; ``run`` catches it. ``reason`` is one of ``REASONS``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Leave(BaseException):
    """This worker has received SIGTERM and leaves."""


@dataclass(frozen=True)
class Totals:
    """The result of a step over all workers: mean loss of the global batch, and its number of samples."""

    loss: float
    samples: int


class Worker:
    """One process of a run, from its start to its end; rank and world size change from round to round.

    Attributes:
        rank, world_size: In this round.
        device: The device for the model.
        group: The group for tensors on ``device``: nccl, or None for the default one (gloo).
        restarts: How often the launcher has started this worker again.
        rounds: How many rounds this process has begun.
    """

    def __init__(self) -> None:
        text = os.environ.get("ELASTIC_RENDEZVOUS")
        self.settings = RendezvousSettings.from_json(text) if text else None
        self.rank, self.world_size, self.rounds = 0, 1, 0
        self.group: dist.ProcessGroup | None = None
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._replaces = int(os.environ.get("ELASTIC_REPLACES", "0"))
        self.device = choose_device()
        self._rendezvous: ElasticRendezvous | None = None
        self._round: Round | None = None
        self._watch: PeerWatch | None = None
        self._leaving = self._interruptible = False
        self._agreed: str | None = None
        self._leavers = self._failed_groups = 0

    # Rounds -------------------------------------------------------------------------------------------------

    def begin(self, state: State, reason: str, load: Callable[[], bool] | None) -> None:
        """Join the next round and load the most advanced worker's ``state``.

        Raises:
            Regroup: A worker was lost before the round was complete.
            Leave, RunEnded, StoreError: This worker cannot join a round.
        """
        began = time.monotonic()
        self._agreed, self._leavers = None, 0
        self._join_round()
        with self.collective():
            shared = self._synchronize(state, reason, load)
        self.rounds += 1
        self.emit("rendezvous", **shared, seconds=round(time.monotonic() - began, 3))

    def _join_round(self) -> None:
        if self.settings is None:
            if "RANK" in os.environ:  # under plain torchrun
                dist.init_process_group("gloo", timeout=timedelta(minutes=5))
            else:  # alone
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self.group = _nccl(self.device)
            return
        with self._may_leave():
            while True:
                try:
                    self._rendezvous = self._rendezvous or ElasticRendezvous(
                        self.settings, replaces=self._replaces
                    )
                    self._round = now = self._rendezvous.next()
                    break
                except RendezvousError as error:  # too few workers joined in time, or the store was lost
                    print(f"elastic: the rendezvous failed ({error}); retrying", file=sys.stderr, flush=True)
                    self.withdraw()
                    self._rendezvous = None
                    time.sleep(1)
        self.rank, self.world_size = now.rank, now.world_size
        try:
            self._create_group(self._rendezvous, now, self.settings)
        except Exception as error:  # gloo's, the store's or etcd's: they have no common base class
            self._failed_groups += 1
            if self._failed_groups > MAX_FAILED_GROUPS:
                raise
            raise Regroup("peer lost") from error
        self._failed_groups = 0

    def _create_group(self, rendezvous: ElasticRendezvous, now: Round, settings: RendezvousSettings) -> None:
        known = set(open_sockets().values())
        hook = sys.excepthook  # torch wraps the store in one in every round
        # Longer each time: on a loaded machine the same timeout would only fail again.
        limit = timedelta(seconds=settings.timeout("group_timeout") * 2**self._failed_groups)
        try:
            dist.init_process_group(
                "gloo", store=now.store, rank=now.rank, world_size=now.world_size, timeout=limit
            )
        except BaseException:
            # The group count is part of the keys in the store: with another count, peers would not find us.
            dist.distributed_c10d._world.group_count = 0
            raise
        finally:
            sys.excepthook = hook
        self._watch = PeerWatch(rendezvous, now, set(open_sockets().values()) - known)
        self._watch.start()
        self.group = _nccl(self.device)
        dist.set_timeout(timedelta(seconds=settings.timeout("collective_timeout")))

    def end_round(self) -> bool:
        """Destroy the group, in any state, and declare the round over for the others.

        Returns:
            True if the others have continued without this worker.
        """
        is_left_behind = False
        if self._watch:
            self._watch.stop()
            self._watch = None
        if dist.is_initialized():
            if self.group is not None:  # a collective on a GPU has no timeout here
                with suppress(RuntimeError):
                    self.group._get_backend(self.device).abort()
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self.group = None
        if self._round and self._rendezvous:
            try:
                is_left_behind = self._rendezvous.declare_over(self._round, leaving=self._leavers)
            except RendezvousError:
                self._rendezvous = None  # the next one reconnects
        self._round = None
        return is_left_behind

    def _synchronize(self, state: State, reason: str, load: Callable[[], bool] | None) -> dict[str, Any]:
        """Broadcast the most advanced worker's state; return the fields for the event."""
        table: list[Any] = [None] * self.world_size
        dist.all_gather_object(table, (state.step if state.ready else -1, REASONS.index(reason)))
        steps, reasons = zip(*table, strict=True)
        leader, source = steps.index(max(steps)), "live"
        if steps[leader] < 0:
            is_loaded = self.rank == leader and load is not None and load()
            source = "checkpoint" if is_loaded else "fresh"
            state.ready = True
        shared: list[Any] = [(source, state.to_bytes()) if self.rank == leader else None]
        dist.broadcast_object_list(shared, leader)
        source, content = shared[0]
        if self.rank != leader and steps[self.rank] < max(steps[leader], 0):
            state.from_bytes(content)
        fields = {"round": self._round.number if self._round else 0, "host": socket.gethostname()}
        fields |= {"pid": os.getpid(), "reason": REASONS[max(reasons)]}
        fields |= {"leader": leader if source == "live" else None, "source": source}
        return fields | {"epoch": state.epoch, "step": state.step, "restarts": self.restarts}

    # Collectives --------------------------------------------------------------------------------------------

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Turn a failed collective into ``Regroup``; use it around collectives outside this class."""
        try:
            yield
        except RuntimeError as error:
            if self.settings is None or not _is_about_a_peer(error):
                raise
            silent = "imed out" in str(error) or bool(self._watch and self._watch.silent)
            raise Regroup("peer silent" if silent else "peer lost") from error

    def average_gradients(self, model: nn.Module, *, loss: torch.Tensor, samples: int) -> Totals:
        """Replace the gradients with those of the mean over the global batch, the same on all ranks.

        Args:
            model: Has the gradients of the *sum* of this rank's sample losses; None counts as 0.
            loss: That sum, a scalar.
            samples: Their number; 0 is allowed.

        Returns:
            The mean loss and the number of samples of the global batch.

        Raises:
            Regroup: A peer was lost; the step has no effect.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.dtype, []).append(parameter.grad)
        change = self._requested_change()
        votes = [float(loss), samples, *(float(change == reason) for reason in REASONS)]
        totals = torch.tensor(votes, dtype=torch.float64)
        with self.collective():
            for number, gradients in enumerate(by_type.values()):
                self._sum(gradients, totals if number == 0 else None)
            summed = totals.tolist()
        self._leavers = int(summed[2 + REASONS.index("leave")])
        self._agreed = next((REASONS[i] for i in reversed(range(len(REASONS))) if summed[2 + i]), None)
        for gradients in by_type.values():
            for gradient in gradients:
                gradient.div_(max(summed[1], 1))
        return Totals(summed[0] / max(summed[1], 1), int(summed[1]))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place; for uses other than a step, such as an evaluation."""
        with self.collective():
            dist.all_reduce(tensor)
        return tensor

    def _sum(self, gradients: list[torch.Tensor], totals: torch.Tensor | None) -> None:
        """Sum gradients of one type as one flat tensor, in place; ``totals`` are summed with them."""
        flat = [gradient.flatten() for gradient in gradients]
        separate = flat[0].dtype not in (torch.float32, torch.float64)  # too imprecise for the totals
        if totals is not None and not separate:
            flat.append(totals.to(flat[0]))
        bucket = torch.cat(flat)
        if self.group is None:
            dist.all_reduce(bucket)
        else:
            self._wait(dist.all_reduce(bucket, group=self.group, async_op=True))
        parts = bucket.split([len(part) for part in flat])
        for mine, summed in zip(gradients, parts[: len(gradients)], strict=True):
            mine.copy_(summed.view_as(mine))
        if totals is not None and separate:
            dist.all_reduce(totals)
        elif totals is not None:
            totals.copy_(parts[-1])

    def _wait(self, work: dist.Work) -> None:
        """Wait for a collective on a GPU; dead peers are detected by gloo's connections."""
        while not work.is_completed():
            if self._watch and self._watch.ended:
                raise Regroup("peer silent" if self._watch.silent else "peer lost")
            time.sleep(0.0005)
        work.wait()

    # Joining and leaving ------------------------------------------------------------------------------------

    def _requested_change(self) -> str | None:
        if self._leaving:
            return "leave"
        if self._watch and self._watch.store_lost:
            return "store lost"
        return "join" if self._watch and self._watch.waiting else None

    def step_boundary(self) -> None:
        """Mark a step as complete: model updated, ``state.step`` incremented, events written.

        Raises:
            Regroup, Leave: All ranks agreed during this step's gradient exchange that the round ends here.
        """
        if self._agreed is None:
            return
        if self._leaving:
            raise Leave
        raise Regroup(self._agreed)

    @contextmanager
    def _may_leave(self) -> Iterator[None]:
        """Let SIGTERM interrupt the body; elsewhere it takes effect at the end of the step."""
        self._interruptible = True
        try:
            if self._leaving:
                raise Leave
            yield
        finally:
            self._interruptible = False

    def leave_on_sigterm(self) -> None:
        """Treat SIGTERM as a request to leave; a second one kills the process. Main thread only."""

        def on_sigterm(number: int, frame: Any) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._leaving = True
            if self._interruptible:
                raise Leave

        signal.signal(signal.SIGTERM, on_sigterm)

    def withdraw(self) -> None:
        """Stop waiting to join, so that the others do not wait for this worker."""
        if self._rendezvous:
            with suppress(RendezvousError):
                self._rendezvous.withdraw()

    def finish(self) -> None:
        """Wait until all ranks have finished, and close the run to later workers.

        Raises:
            Regroup: A worker was lost near the end; the rest may still need this worker.
        """
        with self.collective():
            dist.barrier()
        if self._watch:
            self._watch.stop()  # otherwise it would take the end of the run for a failed round
        if self._rendezvous:
            self._rendezvous.close()
        self._round = None  # the run is over, so the round need not be declared over
        self.end_round()

    def emit(self, event: str, **fields: object) -> None:
        """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
        line = {"event": event, "time": time.time(), "rank": self.rank, "world_size": self.world_size}
        sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def run(
    train: Callable[[Worker], Any],
    state: State,
    *,
    load: Callable[[Worker], bool] | None = None,
    leave: Callable[[Worker], None] | None = None,
) -> Any:
    """Train to the end, through all membership changes.

    Args:
        train: Takes steps from ``state.step`` on and returns when there are none left; called once per round.
        state: The state that workers share.
        load: Fills ``state`` from the newest checkpoint and returns True, or returns False if there is none;
            called on one rank, and only if no running worker has a newer state.
        leave: Called on a worker that leaves on request, at a step boundary, after the others have continued.

    Returns:
        The return value of ``train``.

    Raises:
        SystemExit: This worker left (143), the run was over before it joined (0), or the store failed (78).

    Example:
        ``elastic.run(lambda worker: train(worker, state), state, load=read_checkpoint)``
    """
    worker, reason = Worker(), "start"
    if worker.settings is not None:
        worker.leave_on_sigterm()
    try:
        while True:
            try:
                worker.begin(state, reason, (lambda: load(worker)) if load else None)
                result = train(worker)
                worker.finish()
                return result
            except Regroup as change:
                reason = change.reason
                if reason in ("peer lost", "peer silent"):
                    worker.emit("lost", epoch=state.epoch, step=state.step, reason=reason)
                if worker.end_round():
                    reason = "join"
    except Leave:
        _leave_run(worker, state, leave)
    except RunEnded:
        worker.emit("end", steps=state.step, late=True)
        raise SystemExit(0) from None
    except StoreError as error:
        print(f"elastic: {error}", file=sys.stderr, flush=True)
        raise SystemExit(DO_NOT_RESTART) from error
    finally:
        worker.end_round()


def _leave_run(worker: Worker, state: State, leave: Callable[[Worker], None] | None) -> NoReturn:
    worker.end_round()
    worker.withdraw()
    if leave is not None and state.ready:
        leave(worker)
    worker.emit("leave", epoch=state.epoch, step=state.step, host=socket.gethostname(), pid=os.getpid())
    raise SystemExit(LEFT)


def _is_about_a_peer(error: RuntimeError) -> bool:
    """Return True for errors of gloo's collectives: plain ``RuntimeError``s that name its source files."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL"))


def choose_device() -> torch.device:
    """Return the device of this process: a GPU if there is one, assigned in turn if there are several."""
    if not torch.cuda.is_available():
        if "TRAINYARD_GPUS" in os.environ:
            print("this pod has GPUs, but torch finds no CUDA device: training on CPU, by gloo", flush=True)
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _nccl(device: torch.device) -> dist.ProcessGroup | None:
    """Return an nccl group if each rank has its own GPU; None means the default group, gloo."""
    gpu_uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    gpu_uuids: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gpu_uuids, gpu_uuid)
    one_gpu_per_rank = None not in gpu_uuids and len(set(gpu_uuids)) == len(gpu_uuids)
    # Otherwise nccl's own watchdog ends the process when a peer is lost.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    group = dist.new_group(backend="nccl") if one_gpu_per_rank else None
    return group if isinstance(group, dist.ProcessGroup) else None
