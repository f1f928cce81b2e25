"""Simulate an accelerator on a machine without one: a minimum computing time for every batch.

Ranks on one machine share its cores, so four ranks cannot show the speed-up of four accelerators. With this
module each rank behaves as if it had its own accelerator with a fixed time per image: it waits before it
sends its gradients. Only the computing time is simulated. The images, gradients and losses are real, and so
is the additional time in which the ranks average their gradients.

The computation still needs cores. If it takes longer than the simulated time, the ranks wait for cores, not
for an accelerator; therefore each rank logs the CPU time of its steps.

Trainers import it only with ``--simulated-ms-per-image``.
"""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all pods of a machine
STEPS = 64  # whose median is logged
Hook = Callable[[dist.ProcessGroup, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def simulate(
    model: DistributedDataParallel,
    ms_per_image: float,
    emit: Callable[..., None],
    hook: Hook = allreduce_hook,
) -> Callable[[], None]:
    """Delay the all-reduce of each step until this rank's batch has taken ``ms_per_image`` for every image.

    A rank that computes for longer is not delayed. DDP calls a communication hook for each bucket of
    gradients that is ready: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html. Batches under
    ``no_sync`` add up. Returns a function with the same delay, for programs that exchange gradients
    themselves.

    The event ``simulated_accelerator`` is logged at once, and after 2, 4, 8 … steps with ``cpu_ms``, the
    median CPU milliseconds of this rank per step, the ``cores`` that it may use, and an identifier of the
    ``machine``.
    """
    ready = 0.0
    used = time.process_time()
    steps = -1  # completed steps when the first begins: none
    cpu_ms: deque[float] = deque(maxlen=STEPS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = BOOT_ID.read_text()[:8] if BOOT_ID.exists() else ""

    def begin(_: DistributedDataParallel, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal ready, used, steps
        before, used, steps = used, time.process_time(), steps + 1
        if steps > 1:  # the first step also allocates
            cpu_ms.append(1000 * (used - before))
            if not steps & (steps - 1):
                median = round(statistics.median(cpu_ms), 3)
                emit(
                    "simulated_accelerator",
                    ms_per_image=ms_per_image,
                    cpu_ms=median,
                    cores=cores,
                    machine=machine,
                )
        ready = max(ready, time.perf_counter()) + ms_per_image / 1000 * len(inputs[0])

    def wait() -> None:
        time.sleep(max(0.0, ready - time.perf_counter()))

    def average(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        wait()
        return hook(group, bucket)

    emit("simulated_accelerator", ms_per_image=ms_per_image)
    model.register_forward_pre_hook(begin)
    model.register_comm_hook(model.process_group, average)
    return wait
