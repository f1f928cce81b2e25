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
import importlib.util
import json
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
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
from torch.distributed.tensor import DTensor
from torch.utils.data import DistributedSampler, TensorDataset

# Settings ---------------------------------------------------------------------------------------------------

# Mean and standard deviation of each channel of CIFAR-10's training images, out of 255.
MEAN, SPREAD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
# pad: maximum shift of a crop, in pixels; hole: side of the blanked square; smoothing: of the labels.
# resnet9's recipe is that of David Page's "How to train your ResNet" (2018), with smoothed labels.
RECIPES = {
    "small": {"pad": 2, "hole": 0, "smoothing": 0.0},
    "workshop": {"pad": 2, "hole": 0, "smoothing": 0.0},
    "resnet9": {"pad": 4, "hole": 8, "smoothing": 0.1},
}


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults reach 74% in ten epochs on two ranks."""
    parser = argparse.ArgumentParser(description="Train an image classifier, on one rank or on many.")
    parser.add_argument("--data-dir", type=Path, default=Path("data/cifar10"))
    parser.add_argument("--model", choices=sorted(RECIPES), default="small")
    parser.add_argument("--model-file", type=Path, help="where to save the trained model")
    parser.add_argument("--checkpoint-dir", type=Path, help="where to save the state after each epoch")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="images a step, of each rank")
    parser.add_argument("--lr", type=float, default=0.1, help="highest rate, for a step of 128 images in all")
    parser.add_argument("--limit", type=int, default=0, help="training images to use; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two `step` events")
    for name in ("bf16", "channels-last"):
        switch = argparse.BooleanOptionalAction
        parser.add_argument(f"--{name}", action=switch, default=True, help="where the device has it")
    settings = parser.parse_args(argv)
    if min(settings.epochs, settings.batch_size, settings.log_every) < 1 or settings.limit < 0:
        parser.error("--epochs, --batch-size and --log-every are 1 or more, --limit is 0 or more")
    return settings


def join_the_others() -> None:
    """Join the process group; without torchrun's variables this process is the only rank."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def choose_device() -> tuple[torch.device, dist.ProcessGroup | None]:
    """Return this rank's device, and the process group that averages gradients.

    NCCL needs a GPU for each rank. If ranks share one, or there is none, gloo (the default group) is used.
    """
    mine = None
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        mine = str(torch.cuda.get_device_properties(index).uuid)
    elif "TRAINYARD_GPUS" in os.environ:
        print("this pod has GPUs, but torch finds no CUDA device: training on CPU, by gloo", flush=True)
    everyone: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    device = torch.device("cuda", torch.cuda.current_device()) if mine else torch.device("cpu")
    own_gpu_each = None not in everyone and len(set(everyone)) == len(everyone)
    group = dist.new_group(backend="nccl") if own_gpu_each else None
    return device, group if isinstance(group, dist.ProcessGroup) else None


def has_bf16(device: torch.device) -> bool:
    """Return True if the device supports bfloat16 natively; emulation is slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def emit(event: str, **fields: object) -> None:
    """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
    line = {"event": event, "time": time.time(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


# Data -------------------------------------------------------------------------------------------------------


def describe(folder: Path) -> dict[str, Any]:
    """Return the content of ``dataset.json``: written last, it marks the data set as complete."""
    try:
        return json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        advice = f'kit.prepare_dataset("{folder.name}", volume=…), or notebook 04; then mount that volume'
        message = f"{folder} has no dataset.json, so no whole data set; make it by {advice}"
        raise SystemExit(message) from error


def read_images(folder: Path, *, train: bool, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Return CIFAR-10's images as bytes (n x 32 x 32 x 3) and their labels; the first ``limit``, or all."""
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    pixels, labels = [], []
    for name in names:
        path = folder / "cifar-10-batches-py" / name
        try:
            batch = pickle.loads(path.read_bytes(), encoding="bytes")  # can run code: verified files only
            pixels.append(batch[b"data"])
            labels += batch[b"labels"]
        except (OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise SystemExit(f"{path} cannot be read ({error}); prepare the data set anew") from error
        if limit and len(labels) >= limit:
            break
    images = np.concatenate(pixels)[: limit or None].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return torch.from_numpy(np.ascontiguousarray(images)), torch.tensor(labels[: limit or None])


def normalise(pixels: Tensor) -> Tensor:
    """Normalise bytes (n x side x side x 3) to floats around 0 (n x 3 x side x side), channels last."""
    mean, spread = (torch.tensor(rgb, device=pixels.device).view(1, 3, 1, 1) for rgb in (MEAN, SPREAD))
    return pixels.permute(0, 3, 1, 2).float().sub_(mean).div_(spread)


def augment(images: Tensor, chosen: Tensor, rng: torch.Generator, *, pad: int, hole: int) -> Tensor:
    """Gather a batch: shift each image by up to ``pad`` pixels, flip half of them, blank one square.

    One index operation handles the whole batch: it has the source row and column of each target pixel.
    """
    count, side, device = len(chosen), images.shape[1], images.device
    line = torch.arange(side, device=device)
    move = torch.randint(-pad, pad + 1, (2, count, 1), generator=rng).to(device)
    mirrored = torch.randint(0, 2, (count, 1), generator=rng, dtype=torch.bool).to(device)
    rows, columns = (side - 1 - (side - 1 - (line + by).abs()).abs() for by in move)  # reflected at the edges
    columns = torch.where(mirrored, columns.flip(1), columns)
    batch = normalise(images[chosen.to(device)[:, None, None], rows[:, :, None], columns[:, None, :]])
    if hole:
        corner = torch.randint(0, side - hole + 1, (2, count, 1), generator=rng).to(device)
        across, down = ((line - at) // hole == 0 for at in corner)
        batch.masked_fill_((down[:, :, None] & across[:, None, :]).unsqueeze(1), 0)
    return batch


# Model ------------------------------------------------------------------------------------------------------


def block(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    """Return a convolution with batch normalisation; pooling before it saves three quarters of its work."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    shrink = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(convolution, *shrink, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(block(width, width), block(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


class Scale(nn.Module):
    """Scale the logits: smaller ones keep the softmax from saturating early."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def make_model(name: str, classes: int) -> nn.Sequential:
    """Return a network for colour images of 32 x 32 pixels."""
    if name == "small":
        layers = [block(3, 32, pool=True), block(32, 64, pool=True), block(64, 128, pool=True), nn.Flatten()]
        layers += [nn.Linear(128 * 16, 128), nn.ReLU(), nn.Linear(128, classes)]
    elif name == "workshop":  # from the EKS workshop: six convolutions of 3 x 3
        layers, width = [], 3
        for first, second in ((32, 64), (128, 128), (256, 256)):
            layers += [nn.Conv2d(width, first, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            layers, width = [*layers, nn.BatchNorm2d(second)], second
        layers += [nn.Flatten(), nn.Linear(256 * 16, 512), nn.ReLU(), nn.Linear(512, classes)]
    else:
        layers = [block(3, 64), block(64, 128, pool=True), Residual(128), block(128, 256, pool=True)]
        layers += [block(256, 512, pool=True), Residual(512), nn.MaxPool2d(4), nn.Flatten()]
        layers += [nn.Linear(512, classes, bias=False), Scale(0.125)]
    return nn.Sequential(*layers)


# Loop -------------------------------------------------------------------------------------------------------


def one_cycle(step: int, steps: int) -> float:
    """Return the fraction of the peak rate: linear warm-up for a fifth of the steps, then linear decay."""
    peak = max(1, steps // 5)
    return min((step + 1) / peak, (steps - step) / max(1, steps - peak))


def gpu_usage(device: torch.device) -> dict[str, float]:
    """Return the GPU's utilisation and memory in use according to NVML, over all its processes."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    used: dict[str, float] = {"gpu_memory_bytes": total - free}
    with suppress(RuntimeError):  # not every driver reports it
        if importlib.util.find_spec("pynvml") is not None:  # torch needs it to query NVML
            used["gpu_percent"] = torch.cuda.utilization(device)
    return used


def train_epoch(
    model: nn.Module,
    batches: Sequence[Tensor],
    data: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    settings: argparse.Namespace,
    epoch: int,
    rng: torch.Generator,
    cast: AbstractContextManager[object],
) -> None:
    """Take one step for each batch of this rank's share."""
    (images, labels), recipe = data, RECIPES[settings.model]
    device = images.device
    model.train()
    began, samples, total = time.perf_counter(), 0, torch.zeros((), device=device)
    for index, chosen in enumerate(batches):
        batch = augment(images, chosen, rng, pad=int(recipe["pad"]), hole=int(recipe["hole"]))
        with cast:
            answers = model(batch if settings.channels_last else batch.contiguous())
        truth = labels[chosen.to(device)]
        loss = nn.functional.cross_entropy(answers.float(), truth, label_smoothing=recipe["smoothing"])
        optimizer.zero_grad()
        loss.backward()  # each rank gets its part of the averaged gradients in here
        optimizer.step()
        schedule.step()
        samples += len(chosen)
        total = total + loss.detach() * len(chosen)  # no .item(): a GPU would wait
        step = epoch * len(batches) + index
        if step % settings.log_every == 0:
            metrics = {"loss": round(loss.item(), 5)}
            metrics["images_per_s"] = round(samples / (time.perf_counter() - began), 1)
            lr = round(float(schedule.get_last_lr()[0]), 6)
            emit("step", step=step, epoch=epoch, lr=lr, **metrics, **gpu_usage(device))
            sys.stdout.write(f"[{epoch + 1}, {index + 1:5d}] loss: {loss.item():.3f}\n")  # for people
    mean, seconds = round(total.item() / samples, 5), time.perf_counter() - began
    rate = round(samples / seconds, 1)
    emit("epoch", epoch=epoch, steps=len(batches), loss=mean, seconds=round(seconds, 4), images_per_s=rate)


def memory_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Count the bytes that this rank holds of parameters, gradients and optimizer state."""

    def count(tensors: Iterable[Tensor]) -> int:
        parts = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
        return sum(tensor.numel() * tensor.element_size() for tensor in parts)

    parameters = list(network.parameters())
    state = [part for parts in optimizer.state.values() for part in parts.values() if torch.is_tensor(part)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sets: dict[str, Sequence[Tensor]] = {"parameters": parameters, "gradients": gradients, "optimizer": state}
    return {f"{kind}_bytes": count(tensors) for kind, tensors in sets.items()}


def share_statistics(network: nn.Module) -> None:
    """Average the batch normalisation statistics over the ranks, so that all have the same model."""
    for buffer in network.buffers():
        if buffer.is_floating_point():
            common = buffer.cpu()
            dist.all_reduce(common)
            buffer.copy_(common / dist.get_world_size())


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and loss over all test images, each counted once: a rank evaluates every n-th image."""
    network.eval()
    batches = -(-len(labels) // (500 * dist.get_world_size()))  # as many on each rank: all gather each layer
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in (images, labels))
    sums = torch.zeros(3, dtype=torch.float64)
    for pixels, truth in zip(images.tensor_split(batches), labels.tensor_split(batches), strict=True):
        answers = network(normalise(pixels))
        loss = nn.functional.cross_entropy(answers, truth, reduction="sum")
        correct = (answers.argmax(1) == truth).sum()
        sums += torch.tensor([loss.item(), correct.item(), len(truth)], dtype=torch.float64)
    dist.all_reduce(sums)
    loss, correct, count = sums.tolist()
    return {"accuracy": round(correct / count, 5), "loss": round(loss / count, 5), "images": int(count)}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically: to a temporary file, flushed to the disk, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:
        beside.unlink(missing_ok=True)
        raise SystemExit(f"{path} cannot be written ({error}); is the volume full, or read-only?") from error


def shard(network: nn.Sequential, *, group: dist.ProcessGroup | None, device: torch.device) -> nn.Module:
    """Split the parameters of each layer over the ranks; a layer is whole only while it computes."""
    everyone = group or dist.group.WORLD
    assert everyone, "the ranks have joined"
    mesh = DeviceMesh.from_group(everyone, device.type)
    for layer in network:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


def run_of(settings: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that must match for a run to continue another; the number of ranks may differ."""
    same = ("model", "epochs", "batch_size", "lr", "limit", "seed")
    return {name: getattr(settings, name) for name in same}


def keep_checkpoint(
    settings: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    epoch: int,
) -> None:
    """Save each rank's part of the state; ``epoch`` is the next one to run. The two newest are kept."""
    began = time.perf_counter()
    share_statistics(network)
    everyone: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, rng.get_state())  # each rank has its own random generator
    model, state = get_state_dict(network, optimizer)
    folder = settings.checkpoint_dir / f"epoch-{epoch:04}"
    content = {"model": model, "optimizer": state, "run": run_of(settings), "epoch": epoch}
    content["generators"] = tuple(
        everyone
    )  # a list would be saved by element, which binds the number of ranks
    checkpoint.save(content, checkpoint_id=folder)  # .metadata is written last, and marks it as complete
    if dist.get_rank() == 0:
        for old in sorted(settings.checkpoint_dir.glob("epoch-*"))[:-2]:
            shutil.rmtree(old)
        emit("checkpoint", epoch=epoch, file=folder.name, seconds=round(time.perf_counter() - began, 4))


def resume(
    settings: argparse.Namespace, network: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator
) -> int:
    """Load this rank's part of the newest complete checkpoint; return the epoch to continue with."""
    found = [max(settings.checkpoint_dir.glob("epoch-*/.metadata"), default=None)]
    dist.broadcast_object_list(found)  # rank 0 selects it: concurrent readers may see different ones
    if found[0] is None:
        return 0
    folder = found[0].parent
    about: dict[str, Any] = {"run": run_of(settings), "epoch": 0, "generators": ()}
    checkpoint.load(about, checkpoint_id=folder)
    if about["run"] != run_of(settings):
        raise SystemExit(
            f"{folder} is of another run ({about['run']}); "
            "start with the same values, or with another --checkpoint-dir"
        )
    rate = optimizer.param_groups[0]["lr"]
    model, state = get_state_dict(network, optimizer)
    checkpoint.load({"model": model, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(network, optimizer, model_state_dict=model, optim_state_dict=state)
    optimizer.param_groups[0].update(lr=rate, initial_lr=rate)  # it scales with the ranks of now
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
    low = settings.bf16 and has_bf16(device)
    cast = torch.autocast(device.type, torch.bfloat16) if low else nullcontext()

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
    place |= {"host": socket.gethostname(), "precision": "bf16" if low else "fp32"}
    emit("start", **data, **work, **place)

    for epoch in range(begin, settings.epochs):
        sampler.set_epoch(epoch)  # otherwise every epoch has the same order
        batches = torch.tensor(list(sampler)).split(settings.batch_size)
        train_epoch(
            model, batches, train, optimizer, schedule, settings=settings, epoch=epoch, rng=rng, cast=cast
        )
        if settings.checkpoint_dir:
            keep_checkpoint(settings, network, optimizer, rng, epoch + 1)
    emit("memory", **memory_of(network, optimizer))
    share_statistics(network)
    result = evaluate(network, *test)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(network, options=whole)  # all take part; rank 0 gets them
    if dist.get_rank() == 0:  # one writer: two would corrupt the file
        emit("eval", **result, dataset=about["name"], synthetic=about["synthetic"])
        if settings.model_file:
            metadata = {"model": settings.model, "dataset": about["name"], "classes": about["classes"]}
            save(settings.model_file, metadata | {"epochs": settings.epochs, "weights": weights})
    emit("end", steps=steps, seconds=round(time.perf_counter() - began, 3))


def main(argv: list[str] | None = None) -> None:
    """Join the others, and train."""
    settings = parse_settings(argv)
    join_the_others()
    run(settings)
    gc.collect()  # the sharded model's cycles hold the group: its threads must end before the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
