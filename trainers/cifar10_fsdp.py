# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "torch>=2.15"]
# ///
"""Classify the photographs of CIFAR-10 with a model that is split over the ranks (fully_shard, FSDP2).

This is ``cifar10_ddp.py`` plus one idea: a rank stores a part of the parameters, of the gradients and of the
optimizer state, not a copy of all. A layer's parameters are gathered just before it computes and freed after
it; the backward pass gives each rank its part of the averaged gradients. The losses are those of DDP.

    torchrun --nproc-per-node 2 trainers/cifar10_fsdp.py --data-dir data/cifar10 --model workshop
    torchrun --nproc-per-node 2 trainers/cifar10_fsdp.py --data-dir data/cifar10 \\
        --checkpoint-dir data/checkpoints

With ``--checkpoint-dir``, a folder on a volume that all ranks share, each rank saves its part after every
epoch. The same command resumes, on any number of ranks. ``--model-file`` gets the whole model, from rank 0.

Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``; the event
``memory`` has the bytes of this rank's parts.
"""

import argparse
import gc
import shutil
import socket
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cifar10_ddp import (
    Training,
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
    one_cycle,
    read_images,
    train_epoch,
)
from step_recorder import memory_of
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler, TensorDataset

# Settings ---------------------------------------------------------------------------------------------------


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags: those of ``cifar10_ddp.py`` that apply to a split model, and one for checkpoints."""
    parser = make_parser(whole=False)
    parser.add_argument("--checkpoint-dir", type=Path, help="where to save the state after each epoch")
    return parser.parse_args(argv)


# Loop -------------------------------------------------------------------------------------------------------


def shard(network: nn.Sequential, *, group: dist.ProcessGroup | None, device: torch.device) -> nn.Module:
    """Split the parameters of each layer over the ranks; a layer is whole only while it computes."""
    process_group = group or dist.group.WORLD
    assert process_group, "the ranks have joined"
    mesh = DeviceMesh.from_group(process_group, device.type)
    for layer in network:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


def run_settings(settings: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that must match for a run to continue another; the number of ranks may differ."""
    same = ("model", "epochs", "batch_size", "lr", "limit", "seed")
    return {name: getattr(settings, name) for name in same}


def save_checkpoint(
    settings: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    epoch: int,
) -> None:
    """Save each rank's part of the state; ``epoch`` is the next one to run. The two newest are kept."""
    began = time.perf_counter()
    average_statistics(network)
    generators: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, rng.get_state())  # each rank has its own random generator
    model, state = get_state_dict(network, optimizer)
    folder = settings.checkpoint_dir / f"epoch-{epoch:04}"
    content = {"model": model, "optimizer": state, "run": run_settings(settings), "epoch": epoch}
    content["generators"] = tuple(
        generators
    )  # a list would be saved by element, which would fix the number of ranks
    checkpoint.save(content, checkpoint_id=folder)  # .metadata is written last, and marks it as complete
    if dist.get_rank() == 0:
        for old in sorted(settings.checkpoint_dir.glob("epoch-*"))[:-2]:
            shutil.rmtree(old)
        emit("checkpoint", epoch=epoch, file=folder.name, seconds=round(time.perf_counter() - began, 4))


def resume(
    settings: argparse.Namespace, network: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator
) -> int:
    """Load this rank's part of the newest complete checkpoint; return the epoch to continue with."""
    newest = [max(settings.checkpoint_dir.glob("epoch-*/.metadata"), default=None)]
    dist.broadcast_object_list(newest)  # rank 0 selects it: concurrent readers may see different ones
    if newest[0] is None:
        return 0
    folder = newest[0].parent
    about: dict[str, Any] = {"run": run_settings(settings), "epoch": 0, "generators": ()}
    checkpoint.load(about, checkpoint_id=folder)
    if about["run"] != run_settings(settings):
        raise SystemExit(
            f"{folder} belongs to another run ({about['run']}); "
            "start with the same values, or with another --checkpoint-dir"
        )
    rate = optimizer.param_groups[0]["lr"]
    model, state = get_state_dict(network, optimizer)
    checkpoint.load({"model": model, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(network, optimizer, model_state_dict=model, optim_state_dict=state)
    optimizer.param_groups[0].update(lr=rate, initial_lr=rate)  # it scales with the current number of ranks
    if dist.get_rank() < len(about["generators"]):
        rng.set_state(about["generators"][dist.get_rank()])
    emit("resume", epoch=about["epoch"], ranks_before=len(about["generators"]))
    return about["epoch"]


def run(settings: argparse.Namespace) -> None:
    """Read, resume, train, evaluate, save."""
    began = time.perf_counter()
    device, group = choose_device()
    device = device if group else torch.device("cpu")  # gloo does not gather from a GPU that ranks share
    torch.manual_seed(settings.seed)  # the same first weights on every rank
    rng = torch.Generator().manual_seed(settings.seed * 1000 + dist.get_rank())  # but different crops

    about = describe(settings.data_dir)
    folder, limit = settings.data_dir, settings.limit
    train = [part.to(device) for part in read_images(folder, train=True, limit=limit)]
    test = [part.to(device) for part in read_images(folder, train=False, limit=limit // 5)]
    sampler = DistributedSampler[int](TensorDataset(*train), seed=settings.seed)  # each rank's own share

    network = make_model(settings.model, len(about["classes"])).to(device)
    model = shard(network, group=group, device=device)
    use_bf16 = settings.bf16 and has_bf16(device)
    cast = torch.autocast(device.type, torch.bfloat16) if use_bf16 else nullcontext()

    # Twice the images in a step give a less noisy gradient and allow twice the rate (Goyal et al., 2017).
    lr = settings.lr * settings.batch_size * dist.get_world_size() / 128
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    per_epoch = -(-len(sampler) // settings.batch_size)
    steps = settings.epochs * per_epoch
    begin = resume(settings, network, optimizer, rng) if settings.checkpoint_dir else 0
    done = begin * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(done + step, steps))
    data = {"dataset": about["name"], "synthetic": about["synthetic"]}
    data |= {"train_images": len(train[1]), "test_images": len(test[1])}
    work = {"model": settings.model, "batch_size": settings.batch_size, "steps": steps, "lr": round(lr, 5)}
    work["parameters"] = sum(parameter.numel() for parameter in network.parameters())
    place = {"device": str(device), "backend": dist.get_backend(group), "threads": torch.get_num_threads()}
    place |= {"host": socket.gethostname(), "precision": "bf16" if use_bf16 else "fp32"}
    emit("start", **data, **work, **place)

    training = Training(
        settings, about, train, test, sampler, network, model, optimizer, schedule, rng, cast, steps
    )
    for epoch in range(begin, settings.epochs):
        train_epoch(training, epoch)
        if settings.checkpoint_dir:
            save_checkpoint(settings, network, optimizer, rng, epoch + 1)
    emit("memory", **memory_of(network, optimizer))
    average_statistics(network)
    result = evaluate(network, *test)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(network, options=options)  # a collective; rank 0 gets them
    finish(training, result, weights)
    emit("end", steps=steps, seconds=round(time.perf_counter() - began, 3))


def main(argv: list[str] | None = None) -> None:
    """Initialize the process group, and train."""
    settings = parse_settings(argv)
    init_distributed()
    run(settings)
    gc.collect()  # the sharded model's cycles hold the group: its threads must end before the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
