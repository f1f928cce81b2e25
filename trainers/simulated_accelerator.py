"""Simulate an accelerator on a machine that has none: a minimum computing time for every batch.

Ranks on one machine share its cores, so four of them cannot show what four accelerators gain. With this
module each rank behaves as if it had an accelerator of its own that needs a given time for each image: it
waits before it hands over its gradients. Only the computing time is simulated. The images, the gradients and
the losses are real, and so is the time in which the ranks average their gradients, which comes on top.

Trainers import it if ``--simulated-ms-per-image`` is given; without that flag they run without this file.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def simulate(model: DistributedDataParallel, ms_per_image: float) -> None:
    """Delay the all-reduce of each step until this rank's batch has taken ``ms_per_image`` for every image.

    A rank that computes for longer is not delayed. DDP calls a communication hook for each bucket of
    gradients that is ready: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html.
    """
    ready = 0.0

    def begin(_: DistributedDataParallel, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal ready
        ready = time.perf_counter() + ms_per_image / 1000 * len(inputs[0])

    def average(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(max(0.0, ready - time.perf_counter()))
        return allreduce_hook(group, bucket)

    model.register_forward_pre_hook(begin)
    model.register_comm_hook(model.process_group, average)
