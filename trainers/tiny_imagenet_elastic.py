# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "numpy>=2.4", "nvidia-ml-py>=13", "pillow>=12", "python-etcd>=0.4.5",
#     "torch>=2.15", "torchvision>=0.29",
# ]
# ///
"""Classify the photographs of tiny-imagenet-200, or of your own folder, with ranks that may join and leave.

This is ``tiny_imagenet_ddp.py`` plus the idea of ``digits_elastic.py``: a step processes a global batch,
whatever the number of ranks. The cropping of an image depends only on the seed, the epoch and the image, not
on the rank that does it. Only batch normalisation depends on the ranks, because it sees one rank's slice; so
the losses of runs with different numbers of ranks are close but not equal.

    python trainers/tiny_imagenet_elastic.py --data-dir data/tiny-imagenet-200
    python trainers/elastic_launch.py --nnodes 1:4 --rdzv_endpoint HOST:29400 --rdzv_id RUN \\
        trainers/tiny_imagenet_elastic.py --checkpoint-dir DIR          # on each machine; survivors continue
    torchrun --nproc-per-node 2 --max-restarts 3 trainers/tiny_imagenet_elastic.py \\
        --checkpoint-dir DIR                                            # stock torchrun: all ranks restart

The folder has ``dataset.json``, and ``train`` and ``val`` (or ``test``), also within ``tiny-imagenet-200``.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import os
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import checkpoints
import elastic
import torch
from cifar10_ddp import (
    average_statistics,
    describe,
    evaluate,
    gpu_usage,
    has_bf16,
    normalise,
    one_cycle,
)
from tiny_imagenet_ddp import RECIPES, make_model, read_folders
from torch import Tensor, nn

# Settings ---------------------------------------------------------------------------------------------------

# Settings that must match for a run to resume from a checkpoint; the number of ranks may differ.
CONTINUED = ("model", "epochs", "global_batch_size", "lr", "seed", "limit")
PAD, SMOOTHING = 8, 0.1  # maximum shift of a crop, in pixels; of the labels


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults are small enough for a CPU."""
    parser = argparse.ArgumentParser(
        description="Train an image classifier on ranks that may join and leave."
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data/tiny-imagenet-200"))
    parser.add_argument("--model", choices=sorted(RECIPES), default="resnet18")
    parser.add_argument("--model-file", type=Path, help="where to save the trained model")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=64, help="images per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.1, help="peak learning rate, for 128 images per step")
    parser.add_argument("--limit", type=int, default=2000, help="training images to use; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir", type=Path, help="on a volume shared by all ranks")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument(
        "--checkpoint-failures", type=int, default=3, help="consecutive ones that end the run"
    )
    parser.add_argument("--log-every", type=int, default=1, help="steps between two `step` events")
    parser.add_argument("--step-seconds", type=float, default=0, help="least duration, for people who watch")
    for name in ("bf16", "channels-last"):
        switch = argparse.BooleanOptionalAction
        parser.add_argument(f"--{name}", action=switch, default=True, help="where the device has it")
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


def draw_augmentation(epoch: int, *, images: int, seed: int) -> Tensor:
    """Draw for each image of an epoch its shift down and right, and whether it is flipped."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    move = torch.randint(-PAD, PAD + 1, (images, 2), generator=generator)
    return torch.cat([move, torch.randint(0, 2, (images, 1), generator=generator)], dim=1)


def augment(images: Tensor, chosen: Tensor, shifts: Tensor) -> Tensor:
    """Gather a batch, each image shifted and flipped as drawn in ``shifts``.

    One index operation handles the whole batch: it has the source row and column of each target pixel.
    """
    side, device = images.shape[1], images.device
    line = torch.arange(side, device=device)
    down, right, mirrored = shifts[chosen].to(device).T.unsqueeze(2)
    rows, columns = (side - 1 - (side - 1 - (line + by).abs()).abs() for by in (down, right))  # reflected
    columns = torch.where(mirrored.bool(), columns.flip(1), columns)
    return normalise(images[chosen.to(device)[:, None, None], rows[:, :, None], columns[:, None, :]])


# Loop -------------------------------------------------------------------------------------------------------


def take_step(
    worker: elastic.Worker,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    images: Tensor,
    labels: Tensor,
    *,
    cast: AbstractContextManager[object],
) -> elastic.Totals:
    """Take one step with this rank's slice; if a peer is lost meanwhile, the step has no effect."""
    optimizer.zero_grad()
    loss = torch.zeros(())
    if len(labels):  # batch normalisation cannot process an empty slice
        with cast:
            logits = network(images).float()
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING, reduction="sum")
        loss.backward()
    whole = worker.average_gradients(network, loss=loss.detach(), samples=len(labels))
    optimizer.step()
    schedule.step()
    return whole


def train(
    worker: elastic.Worker,
    state: elastic.State,
    network: nn.Module,
    data: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    settings: argparse.Namespace,
    manager: checkpoints.CheckpointManager,
    cast: AbstractContextManager[object],
) -> None:
    """Take the steps from ``state.step`` to the last; called again after each membership change."""
    images, labels = data
    batch, last = settings.global_batch_size, settings.epochs * state.steps_per_epoch
    network.train()
    while state.step < last:
        epoch, began, samples = state.epoch, time.perf_counter(), 0
        losses: list[float] = []
        order = epoch_order(epoch, images=len(labels), seed=settings.seed)
        shifts = draw_augmentation(epoch, images=len(labels), seed=settings.seed)
        while state.epoch == epoch:
            floor, step = time.perf_counter() + settings.step_seconds, state.step
            mine = rank_slice(order, state.index, batch=batch, rank=worker.rank, world_size=worker.world_size)
            pixels, targets = augment(images, mine, shifts), labels[mine.to(labels.device)]
            lr = float(schedule.get_last_lr()[0])
            whole = take_step(worker, network, optimizer, schedule, pixels, targets, cast=cast)
            state.step += 1
            samples, losses = samples + len(mine), [*losses, whole.loss]
            rate = round(samples / (time.perf_counter() - began), 1)
            if step % settings.log_every == 0:
                metrics = {
                    "loss": whole.loss,
                    "samples": whole.samples,
                    "images_per_s": rate,
                    "lr": round(lr, 6),
                }
                worker.emit("step", step=step, epoch=epoch, **metrics, **gpu_usage(worker.device))
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
    about = describe(settings.data_dir)
    data = [part.to(device) for part in read_folders(settings.data_dir, train=True, limit=settings.limit)]
    test = [
        part.to(device) for part in read_folders(settings.data_dir, train=False, limit=settings.limit // 5)
    ]
    network = make_model(settings.model, len(about["classes"])).to(device)
    network = network.to(memory_format=torch.channels_last) if settings.channels_last else network
    use_bf16 = settings.bf16 and has_bf16(device)
    cast = torch.autocast(device.type, torch.bfloat16) if use_bf16 else nullcontext()

    lr = settings.lr * settings.global_batch_size / 128
    optimizer = torch.optim.SGD(network.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    per_epoch = -(-len(data[1]) // settings.global_batch_size)
    steps = settings.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
    shared = {"model": network, "optimizer": optimizer, "schedule": schedule}
    state = elastic.State(steps_per_epoch=per_epoch, **shared)
    run = {name: getattr(settings, name) for name in CONTINUED} | {"dataset": about["name"]}
    when = {"every": settings.checkpoint_every, "failures": settings.checkpoint_failures}
    manager = checkpoints.CheckpointManager(settings.checkpoint_dir, run, **when)
    start = {"dataset": about["name"], "synthetic": about["synthetic"], "model": settings.model}
    start |= {"train_images": len(data[1]), "test_images": len(test[1]), "steps": steps, "lr": round(lr, 5)}
    start |= {"parameters": sum(parameter.numel() for parameter in network.parameters())}
    start |= {"device": str(device), "threads": torch.get_num_threads(), "host": socket.gethostname()}
    start |= {"pid": os.getpid(), "precision": "bf16" if use_bf16 else "fp32"}

    def one_round(worker: elastic.Worker) -> elastic.Worker:
        if worker.rounds == 1:
            worker.emit("start", **start, backend="gloo" if worker.group is None else "nccl")
        train(
            worker, state, network, data, optimizer, schedule, settings=settings, manager=manager, cast=cast
        )
        with worker.collective():
            average_statistics(network)
            result = evaluate(network, *test)
        if worker.rank == 0:  # one writer
            worker.emit("eval", **result, dataset=about["name"], synthetic=about["synthetic"])
            if settings.model_file:
                metadata = {"model": settings.model, "dataset": about["name"], "classes": about["classes"]}
                metadata |= {"epochs": settings.epochs, "weights": network.state_dict()}
                checkpoints.save_model(settings.model_file, metadata)
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
