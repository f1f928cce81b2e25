# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "python-etcd>=0.4.5", "torch>=2.15"]
# ///
"""Classify handwritten digits with processes that may join and leave during training.

This is ``digits_ddp.py`` plus one idea: a step does not depend on the number of ranks. Its global batch
depends only on the seed, the epoch and the step; each rank takes a slice of it, and the ranks add sums over
samples, not means over ranks. So ranks may be lost or join between any two steps without an effect on the
loss; with ``--float64`` to nine digits and more.

    python trainers/digits_elastic.py                                   # one process
    python trainers/elastic_launch.py --nnodes 1:4 --rdzv_endpoint HOST:29400 --rdzv_id RUN \\
        trainers/digits_elastic.py --checkpoint-dir DIR                 # on each machine; survivors continue
    torchrun --nproc-per-node 4 --max-restarts 3 trainers/digits_elastic.py \\
        --checkpoint-dir DIR                                            # stock torchrun: all ranks restart

Rendezvous and state transfer are in ``elastic.py``, checkpoints in ``checkpoints.py``.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import os
import socket
import time
from pathlib import Path

import checkpoints
import elastic
import torch
from digits_ddp import describe, evaluate, read_digits, read_mnist, split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# Settings ---------------------------------------------------------------------------------------------------

# Settings that must match for a run to resume from a checkpoint; the number of ranks may differ.
CONTINUED = ("dataset", "epochs", "global_batch_size", "lr", "seed", "limit", "float64")


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults reach 97% on the digits in a few seconds."""
    parser = argparse.ArgumentParser(description="Train a digit classifier on ranks that may join and leave.")
    parser.add_argument("--dataset", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("data/mnist"), help="where MNIST is")
    parser.add_argument("--limit", type=int, default=0, help="training images to use; 0: all")
    parser.add_argument("--model-file", type=Path, help="where to save the trained model")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--global-batch-size", type=int, default=64, help="images per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--float64", action="store_true", help="compute with doubles, to compare runs exactly"
    )
    parser.add_argument("--checkpoint-dir", type=Path, help="on a volume shared by all ranks")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument(
        "--checkpoint-failures", type=int, default=3, help="consecutive ones that end the run"
    )
    parser.add_argument("--log-every", type=int, default=5, help="steps between two `step` events")
    parser.add_argument("--step-seconds", type=float, default=0, help="minimum duration, to watch the run")
    settings = parser.parse_args(argv)
    counts = ("epochs", "global_batch_size", "checkpoint_every", "checkpoint_failures", "log_every")
    if min(getattr(settings, name) for name in counts) < 1 or settings.limit < 0:
        parser.error("epochs, sizes and intervals are 1 or more, --limit is 0 or more")
    return settings


# Data -------------------------------------------------------------------------------------------------------


def epoch_order(epoch: int, *, images: int, seed: int) -> Tensor:
    """Return the order of the images in an epoch: the same on every rank and at every world size."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def rank_slice(order: Tensor, index: int, *, batch: int, rank: int, world_size: int) -> Tensor:
    """Return a rank's slice of a global batch; with more ranks than images some slices are empty.

    Args:
        order: The order of the images in the epoch.
        index: The batch's number in the epoch; the last may be smaller than the others.
        batch: The global batch size.
        rank, world_size: Their current values.
    """
    return order[index * batch : (index + 1) * batch].tensor_split(world_size)[rank]


# Model ------------------------------------------------------------------------------------------------------


def make_model(side: int) -> nn.Module:
    """Return a two-layer network for images of ``side`` x ``side`` pixels.

    It has no batch normalisation, which would make the result depend on the slicing of the batch.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 128), nn.ReLU(), nn.Linear(128, 10))


# Loop -------------------------------------------------------------------------------------------------------


def take_step(
    worker: elastic.Worker,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    images: Tensor,
    labels: Tensor,
) -> elastic.Totals:
    """Take one step with this rank's slice; if a peer is lost meanwhile, the step has no effect."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(images), labels, reduction="sum")
    loss.backward()
    whole = worker.average_gradients(network, loss=loss.detach(), samples=len(labels))
    optimizer.step()
    schedule.step()
    return whole


def train(
    worker: elastic.Worker,
    state: elastic.State,
    network: nn.Module,
    data: TensorDataset,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    settings: argparse.Namespace,
    manager: checkpoints.CheckpointManager,
) -> None:
    """Take the steps from ``state.step`` to the last; called again after each membership change."""
    images, labels = data.tensors
    batch, last = settings.global_batch_size, settings.epochs * state.steps_per_epoch
    network.train()
    while state.step < last:
        epoch, began, seen = state.epoch, time.perf_counter(), 0
        losses: list[float] = []
        order = epoch_order(epoch, images=len(labels), seed=settings.seed)
        while state.epoch == epoch:
            floor, step = time.perf_counter() + settings.step_seconds, state.step
            mine = rank_slice(order, state.index, batch=batch, rank=worker.rank, world_size=worker.world_size)
            whole = take_step(worker, network, optimizer, schedule, images[mine], labels[mine])
            state.step += 1
            seen, losses = seen + len(mine), [*losses, whole.loss]
            rate = round(seen / (time.perf_counter() - began), 1)
            if step % settings.log_every == 0:
                metrics = {"loss": whole.loss, "samples": whole.samples, "images_per_s": rate}
                worker.emit("step", step=step, epoch=epoch, **metrics)
            if state.index == 0:
                metrics = {"loss": round(sum(losses) / len(losses), 5), "images_per_s": rate}
                worker.emit("epoch", epoch=epoch, seconds=round(time.perf_counter() - began, 4), **metrics)
            manager.after_step(worker, state, last=state.step == last)
            time.sleep(max(0.0, floor - time.perf_counter()))
            worker.step_boundary()  # ranks join and leave here


def main(argv: list[str] | None = None) -> None:
    """Read; then train, evaluate and save with the current ranks."""
    began = time.perf_counter()
    settings = parse_settings(argv)
    device = elastic.choose_device()
    torch.manual_seed(settings.seed)

    if settings.dataset == "digits":
        about = {"name": "digits", "synthetic": False}
        parts = split(*read_digits(), settings.seed)
    else:
        about = describe(settings.data_dir)
        parts = read_mnist(settings.data_dir)
    number = torch.float64 if settings.float64 else torch.float32
    data, test = (TensorDataset(x.to(device, number), y.to(device)) for x, y in (p.tensors for p in parts))
    data = TensorDataset(*data[: settings.limit or None])

    network = make_model(data.tensors[0].shape[-1]).to(device, number)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    per_epoch = -(-len(data) // settings.global_batch_size)
    steps = settings.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shared = {"model": network, "optimizer": optimizer, "schedule": schedule}
    state = elastic.State(steps_per_epoch=per_epoch, **shared)
    run = {name: getattr(settings, name) for name in CONTINUED} | {"model": "mlp"}
    when = {"every": settings.checkpoint_every, "failures": settings.checkpoint_failures}
    manager = checkpoints.CheckpointManager(settings.checkpoint_dir, run, **when)

    start = {"dataset": about["name"], "synthetic": about["synthetic"], "steps": steps}
    start |= {"train_images": len(data), "test_images": len(test)}
    start |= {"parameters": sum(parameter.numel() for parameter in network.parameters())}
    start |= {"device": str(device), "threads": torch.get_num_threads(), "host": socket.gethostname()}
    start |= {"pid": os.getpid()}

    def one_round(worker: elastic.Worker) -> elastic.Worker:
        if worker.rounds == 1:
            worker.emit("start", **start, backend="gloo" if worker.group is None else "nccl")
        train(worker, state, network, data, optimizer, schedule, settings=settings, manager=manager)
        with worker.collective():
            evaluate(network, test, device)
        if worker.rank == 0 and settings.model_file:
            metadata = {"model": "mlp", "dataset": about["name"], "classes": about.get("classes")}
            checkpoints.save_model(settings.model_file, metadata | {"weights": network.state_dict()})
        manager.close(worker)
        return worker

    worker = elastic.run(
        one_round,
        state,
        load=lambda worker: manager.resume(worker, state),
        leave=lambda worker: manager.leave(worker, state),
    )
    worker.emit("end", steps=state.step, seconds=round(time.perf_counter() - began, 3))


if __name__ == "__main__":
    main()
