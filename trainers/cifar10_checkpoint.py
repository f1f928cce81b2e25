# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "torch>=2.15"]
# ///
"""Classify the photographs of CIFAR-10, with checkpoints from which a stopped run resumes.

This is ``cifar10_ddp.py`` plus one idea: rank 0 regularly saves the complete training state to the volume,
and a run that finds such a checkpoint resumes from it, even in the middle of an epoch. With the same number
of ranks no image is skipped or repeated, and the losses are those of an uninterrupted run. The number of
ranks cannot change during a run.

    python trainers/cifar10_checkpoint.py --data-dir data/cifar10 --checkpoint-dir data/checkpoints
    torchrun --nproc-per-node 2 trainers/cifar10_checkpoint.py --data-dir data/cifar10 \\
        --checkpoint-dir data/checkpoints --checkpoint-every 20

Stop it at any time and start it again with the same flags. The JSON lines on stdout now include
``checkpoint`` and ``resume``.
"""

import argparse
import io
import socket
import time
import zipfile
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cifar10_ddp import (
    at_least,
    average_statistics,
    choose_device,
    describe,
    emit,
    evaluate,
    finish,
    has_bf16,
    init_distributed,
    make_model,
    make_parser,
    memory_of,
    one_cycle,
    read_images,
    replicate,
    save,
    train_epoch,
)
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, TensorDataset

# Settings ---------------------------------------------------------------------------------------------------


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags: those of ``cifar10_ddp.py``, and where and when to save checkpoints."""
    parser = make_parser()
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("data/checkpoints"))
    parser.add_argument(
        "--checkpoint-every", type=at_least(1), default=100, help="steps; also after each epoch"
    )
    return parser.parse_args(argv)


# Loop -------------------------------------------------------------------------------------------------------


def run_settings(settings: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that must match for a run to continue another."""
    same = ("model", "epochs", "batch_size", "lr", "limit", "seed")
    return {name: getattr(settings, name) for name in same} | {"ranks": dist.get_world_size()}


def save_checkpoint(
    settings: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    rng: torch.Generator,
    epoch: int,
    step: int,
) -> None:
    """Save the state; ``epoch`` and ``step`` come next. Two are kept, as the newest may be damaged."""
    began = time.perf_counter()
    average_statistics(network)
    generators: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, rng.get_state())  # each rank has its own random generator
    if dist.get_rank() == 0:
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        state["schedule"] = schedule.state_dict()
        path = settings.checkpoint_dir / f"epoch-{epoch:04}-step-{step:06}.pt"
        save(
            path,
            state | {"run": run_settings(settings), "epoch": epoch, "step": step, "generators": generators},
        )
        for old in sorted(settings.checkpoint_dir.glob("epoch-*.pt"))[:-2]:
            old.unlink(missing_ok=True)
        seconds, size = round(time.perf_counter() - began, 4), path.stat().st_size
        emit("checkpoint", epoch=epoch, next_step=step, file=path.name, bytes=size, seconds=seconds)


def find_checkpoint(folder: Path) -> tuple[bytes, list[str]]:
    """Return the newest complete checkpoint, or nothing, and the names of the incomplete ones."""
    broken: list[str] = []
    for path in sorted(folder.glob("epoch-*.pt"), reverse=True):
        with suppress(OSError, zipfile.BadZipFile):
            content = path.read_bytes()
            with zipfile.ZipFile(io.BytesIO(content)) as archive:  # the format of torch.save, with checksums
                if archive.testzip() is None:
                    return content, broken
        broken.append(path.name)
        path.rename(path.with_name(f"broken-{path.name}"))  # it must not count as one of the newest
    return b"", broken


def resume(
    settings: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    rng: torch.Generator,
) -> tuple[int, int]:
    """Load the newest checkpoint; return the epoch and step to continue with."""
    checkpoint: list[Any] = [find_checkpoint(settings.checkpoint_dir) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(
        checkpoint
    )  # rank 0 selects the file: concurrent readers may see different files
    content, broken = checkpoint[0]
    if not content:
        if broken:
            emit("resume", epoch=0, next_step=0, broken=broken)
        return 0, 0
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if state["run"] != (current := run_settings(settings)):
        differences = ", ".join(
            f"{name}: {old}" for name, old in state["run"].items() if current[name] != old
        )
        message = f"{settings.checkpoint_dir} has a checkpoint of another run ({differences}); "
        raise SystemExit(message + "start with the same values, or with another --checkpoint-dir")
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    rng.set_state(state["generators"][dist.get_rank()])
    emit("resume", epoch=state["epoch"], next_step=state["step"], broken=broken)
    return state["epoch"], state["step"]


def main(argv: list[str] | None = None) -> None:
    """Join, read, resume, train, evaluate, save."""
    settings, began = parse_settings(argv), time.perf_counter()
    init_distributed()
    device, group = choose_device()
    torch.manual_seed(settings.seed)  # the same first weights on every rank
    rng = torch.Generator().manual_seed(settings.seed * 1000 + dist.get_rank())  # but different crops

    about = describe(settings.data_dir)
    folder, limit = settings.data_dir, settings.limit
    train = [part.to(device) for part in read_images(folder, train=True, limit=limit)]
    test = [part.to(device) for part in read_images(folder, train=False, limit=limit // 5)]
    sampler = DistributedSampler[int](TensorDataset(*train), seed=settings.seed)  # each rank's own share

    network = make_model(settings.model, len(about["classes"])).to(device)
    network = network.to(memory_format=torch.channels_last) if settings.channels_last else network
    model, compiled = replicate(network, settings, device=device, group=group)
    use_bf16 = settings.bf16 and has_bf16(device)
    cast = torch.autocast(device.type, torch.bfloat16) if use_bf16 else nullcontext()

    # Twice the images in a step give a less noisy gradient and allow twice the rate (Goyal et al., 2017).
    lr = settings.lr * settings.batch_size * dist.get_world_size() / 128
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = settings.epochs * -(-len(sampler) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
    data = {"dataset": about["name"], "synthetic": about["synthetic"]}
    data |= {"train_images": len(train[1]), "test_images": len(test[1])}
    work = {"model": settings.model, "batch_size": settings.batch_size, "steps": steps, "lr": round(lr, 5)}
    work["parameters"] = sum(parameter.numel() for parameter in network.parameters())
    place = {"device": str(device), "backend": dist.get_backend(group), "threads": torch.get_num_threads()}
    place |= {"host": socket.gethostname(), "precision": "bf16" if use_bf16 else "fp32", "compiled": compiled}
    emit("start", **data, **work, **place)

    save_state = partial(save_checkpoint, settings, network, optimizer, schedule, rng)
    begin, first = resume(settings, network, optimizer, schedule, rng)
    for epoch in range(begin, settings.epochs):
        sampler.set_epoch(epoch)  # otherwise every epoch has the same order
        batches = torch.tensor(list(sampler)).split(settings.batch_size)

        def save_when_due(done: int, epoch: int = epoch, last: int = len(batches)) -> None:
            if done % settings.checkpoint_every == 0 and done < last:
                save_state(epoch, done)

        train_epoch(
            model,
            batches,
            train,
            optimizer,
            schedule,
            settings=settings,
            epoch=epoch,
            rng=rng,
            cast=cast,
            first=first,
            after_step=save_when_due,
        )
        first = 0
        save_state(epoch + 1, first)
    emit("memory", **memory_of(network, optimizer))
    average_statistics(network)
    finish(settings, about, evaluate(network, *test), network.state_dict())
    emit("end", steps=steps, seconds=round(time.perf_counter() - began, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
