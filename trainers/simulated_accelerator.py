"""Simulate an accelerator on a machine that has none: a minimum computing time for every batch.

Ranks on one machine share its cores, so four of them cannot show what four accelerators gain. With this
module each rank behaves as if it had an accelerator of its own that needs a given time for each image: it
waits before it hands over its gradients. Only the computing time is simulated. The images, the gradients and
the losses are real, and so is the time in which the ranks average their gradients, which comes on top.

The real computing still needs cores. Where it takes longer than the simulated time, ranks of one machine wait
for its cores and not for an accelerator: so each rank logs what it really computes in a step.

Trainers import it if ``--simulated-ms-per-image`` is given; without that flag they run without this file.
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

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # pods of one machine read the same
STEPS = 64  # of which the median is logged
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
    ``no_sync`` add up. Returns a function that waits as long, for what a program exchanges itself.

    The event ``simulated_accelerator`` is logged at once, and after 2, 4, 8 … steps with ``cpu_ms``, the
    milliseconds of one core that this rank really used in a step (the median), the ``cores`` that it may use,
    and a number of the ``machine`` that has them.
    """
    ready = 0.0
    used = time.process_time()
    steps = -1  # none has ended when the first begins
    cpu_ms: deque[float] = deque(maxlen=STEPS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = BOOT_ID.read_text()[:8] if BOOT_ID.exists() else ""

    def begin(_: DistributedDataParallel, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal ready, used, steps
        before, used, steps = used, time.process_time(), steps + 1
        if steps > 1:  # the first one also allocates
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
