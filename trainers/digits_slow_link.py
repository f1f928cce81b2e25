# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Classify handwritten digits over a slow link: four ways to exchange less than DDP does.

This is ``digits_ddp.py`` with another loop. ``--method`` says what the ranks exchange:

- ``ddp``: the gradients of each batch;
- ``accumulate``: those of ``--batches`` batches, added up (``no_sync``);
- ``fp16``, ``powersgd``: those of each batch, compressed by a communication hook;
- ``diloco``: no gradients, but weights, every ``--batches`` batches. https://arxiv.org/abs/2311.08105

    torchrun --nproc-per-node 4 trainers/digits_slow_link.py --method fp16 --simulated-ms-per-image 10
"""

import argparse
import contextlib
import time
from collections.abc import Callable

import digits_ddp as ddp
import simulated_accelerator
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

METHODS = ("ddp", "accumulate", "fp16", "powersgd", "diloco")


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(description="Train a digit classifier over a slow link.")
    parser.add_argument("--method", choices=METHODS, default="ddp")
    parser.add_argument("--batches", type=int, default=1, help="between two exchanges (accumulate, diloco)")
    parser.add_argument("--batch-size", type=int, default=16, help="images of each rank's batch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulated-ms-per-image", type=float, default=0.0, help="an accelerator's; or 0")
    return parser.parse_args(argv)


def hook(method: str) -> simulated_accelerator.Hook:
    """Return what DDP calls for each bucket of gradients that is ready."""
    if method == "fp16":
        return default_hooks.fp16_compress_hook
    if method == "powersgd":  # each matrix by two thin ones; the error is added to the next gradient
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        return lambda _, bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    return default_hooks.allreduce_hook


def outer_optimizer(network: nn.Module) -> Callable[[], None]:
    """Return DiLoCo's outer step: the ranks' mean movement since the last one is a gradient for all.

    Its learning rate and momentum are those of the paper.
    """
    anchor = parameters_to_vector(network.parameters()).detach().clone()
    optimizer = torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True)

    def step() -> None:
        mean = parameters_to_vector(network.parameters()).detach()
        dist.all_reduce(mean)
        anchor.grad = anchor - mean / dist.get_world_size()
        optimizer.step()
        vector_to_parameters(anchor.clone(), network.parameters())

    return step


def main(argv: list[str] | None = None) -> None:
    """Join, read, train, evaluate."""
    began = time.perf_counter()
    settings = parse_settings(argv)
    ddp.init_distributed()
    device, group = ddp.choose_device()
    torch.manual_seed(settings.seed)  # the same first weights on every rank
    train, test = ddp.split(*ddp.read_digits(), settings.seed)
    sampler = DistributedSampler[int](train, seed=settings.seed)
    loader = DataLoader(train, batch_size=settings.batch_size, sampler=sampler, drop_last=True)
    network = ddp.make_model(8).to(device)
    model = DistributedDataParallel(network, process_group=group)
    ready = simulated_accelerator.simulate(
        model, settings.simulated_ms_per_image, ddp.emit, hook=hook(settings.method)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    outer_step = outer_optimizer(network)
    about = {"name": "digits", "synthetic": False}
    ddp.log_start(
        train,
        test,
        steps=settings.epochs * len(loader),
        batch_size=settings.batch_size,
        network=network,
        device=device,
        group=group,
        about=about,
    )
    local = settings.method == "diloco"
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        for index, (images, labels) in enumerate(loader):
            exchange = (index + 1) % settings.batches == 0
            with model.no_sync() if local or not exchange else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                (loss if local else loss / settings.batches).backward()  # which averages, or adds up
            if local or exchange:
                optimizer.step()
                optimizer.zero_grad()
            if local and exchange:
                ready()
                outer_step()
            ddp.emit("step", step=epoch * len(loader) + index, loss=round(loss.item(), 5), exchange=exchange)
    ready()
    ddp.evaluate(network, test, device)
    ddp.emit("end", steps=settings.epochs * len(loader), seconds=round(time.perf_counter() - began, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
