# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "torch>=2.15"]
# ///
"""Classify the photographs of CIFAR-10 with several processes (DistributedDataParallel).

The loop is that of ``digits_ddp.py``. New are data on a volume, a modern training recipe, and fast data
loading: images stay bytes in one tensor, and a batch is gathered, cropped, flipped and normalised as a whole.
Resuming after a failure is in ``cifar10_checkpoint.py``.

    python trainers/cifar10_ddp.py --data-dir data/cifar10                       # one process
    torchrun --nproc-per-node 2 trainers/cifar10_ddp.py --data-dir data/cifar10  # two on this machine
    torchrun trainers/cifar10_ddp.py --model resnet9 --batch-size 512 --epochs 24  # 94 % on one GPU

The folder has ``cifar-10-batches-py`` and ``dataset.json``; ``kit.prepare_dataset`` creates both.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``. Other lines are
readable, as in the walk-throughs.
"""

import argparse
import importlib.util
import json
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
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


def at_least(least: int) -> Callable[[str], int]:
    """Make a parser of integers that are not below a limit."""

    def parse(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not {least} or more")
        return int(text)

    return parse


def make_parser(
    recipes: Mapping[str, Mapping[str, float]] = RECIPES, *, whole: bool = True
) -> argparse.ArgumentParser:
    """Declare the flags that the image trainers have in common; the defaults are those of CIFAR-10.

    Args:
        recipes: By network, the default first.
        whole: Whether a rank has the whole model, which can be compiled, or slowed down.
    """
    parser = argparse.ArgumentParser(description="Train an image classifier, on one rank or on many.")
    parser.add_argument("--data-dir", type=Path, default=Path("data/cifar10"))
    parser.add_argument("--model", choices=sorted(recipes), default=next(iter(recipes)))
    parser.add_argument("--model-file", type=Path, help="where to save the trained model")
    parser.add_argument("--epochs", type=at_least(1), default=10)
    parser.add_argument("--batch-size", type=at_least(1), default=128, help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.1, help="peak learning rate, for 128 images per step")
    parser.add_argument("--limit", type=at_least(0), default=0, help="training images to use; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=at_least(1), default=10, help="steps between two `step` events")
    switches = ["bf16", "channels-last"]
    if whole:
        switches.append("compile")
        default_ms = os.environ.get("SIMULATED_MS_PER_IMAGE", 0)  # of a declared GPU
        parser.add_argument(
            "--simulated-ms-per-image",
            type=float,
            default=default_ms,
            help="of a simulated accelerator; 0: none",
        )
    for name in switches:
        switch = argparse.BooleanOptionalAction
        parser.add_argument(f"--{name}", action=switch, default=True, help="if the device supports it")
    parser.set_defaults(recipes=recipes)
    return parser


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults reach 74% in ten epochs on two ranks."""
    return make_parser().parse_args(argv)


def init_distributed() -> None:
    """Initialize the process group; without torchrun's variables this process is the only rank."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def choose_device() -> tuple[torch.device, dist.ProcessGroup | None]:
    """Return this rank's device, and the process group that averages gradients.

    NCCL needs a GPU for each rank. If ranks share one, or there is none, gloo (the default group) is used.
    """
    gpu_uuid = None
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        gpu_uuid = str(torch.cuda.get_device_properties(index).uuid)
    elif "TRAINYARD_GPUS" in os.environ:
        print("this pod has GPUs, but torch finds no CUDA device: training on CPU with gloo", flush=True)
    gpu_uuids: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gpu_uuids, gpu_uuid)
    device = torch.device("cuda", torch.cuda.current_device()) if gpu_uuid else torch.device("cpu")
    one_gpu_per_rank = None not in gpu_uuids and len(set(gpu_uuids)) == len(gpu_uuids)
    group = dist.new_group(backend="nccl") if one_gpu_per_rank else None
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
    """Return the content of ``dataset.json``; written last, it marks the dataset as complete."""
    try:
        return json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        advice = f'kit.prepare_dataset("{folder.name}", volume=…), or notebook 04; then mount that volume'
        message = f"{folder} has no dataset.json, so the dataset is incomplete; create it with {advice}"
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
            raise SystemExit(f"{path} cannot be read ({error}); prepare the dataset again") from error
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


@dataclass
class Training:
    """The parts of a run."""

    settings: argparse.Namespace
    about: dict[str, Any]  # dataset.json
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    sampler: DistributedSampler[int]
    network: nn.Module
    model: nn.Module  # the network as it is distributed over the ranks
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    rng: torch.Generator
    cast: AbstractContextManager[object]
    steps: int


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
    training: Training,
    epoch: int,
    *,
    first: int = 0,
    after_step: Callable[[int, int], None] | None = None,
) -> None:
    """Take one step for each batch of this rank's share.

    Args:
        first: The batch to begin with, when the epoch is resumed.
        after_step: Called with the number of batches that are done, and of all.
    """
    settings, model, schedule = training.settings, training.model, training.schedule
    (images, labels), recipe = training.train, settings.recipes[settings.model]
    device = images.device
    training.sampler.set_epoch(epoch)  # otherwise every epoch has the same order
    batches = torch.tensor(list(training.sampler)).split(settings.batch_size)
    model.train()
    began, samples, total = time.perf_counter(), 0, torch.zeros((), device=device)
    for index, chosen in enumerate(batches[first:], first):
        batch = augment(images, chosen, training.rng, pad=int(recipe["pad"]), hole=int(recipe["hole"]))
        with training.cast:
            logits = model(batch if settings.channels_last else batch.contiguous())
        targets = labels[chosen.to(device)]
        loss = nn.functional.cross_entropy(logits.float(), targets, label_smoothing=recipe["smoothing"])
        training.optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients over the ranks in here
        training.optimizer.step()
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
        if after_step is not None:
            after_step(index + 1, len(batches))
    mean, seconds = round(total.item() / samples, 5), time.perf_counter() - began
    rate = round(samples / seconds, 1)
    emit("epoch", epoch=epoch, steps=len(batches), loss=mean, seconds=round(seconds, 4), images_per_s=rate)


def memory_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Count the bytes that this rank holds of parameters, gradients and optimizer state."""
    parameters = list(network.parameters())
    state = [part for parts in optimizer.state.values() for part in parts.values() if torch.is_tensor(part)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sets: dict[str, Sequence[Tensor]] = {"parameters": parameters, "gradients": gradients, "optimizer": state}
    return {f"{kind}_bytes": sum(tensor.nbytes for tensor in tensors) for kind, tensors in sets.items()}


def average_statistics(network: nn.Module) -> None:
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
    batches = -(-len(labels) // (500 * dist.get_world_size()))  # as many on each rank, for a split model
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in (images, labels))
    sums = torch.zeros(3, dtype=torch.float64)
    for pixels, targets in zip(images.tensor_split(batches), labels.tensor_split(batches), strict=True):
        logits = network(normalise(pixels))
        loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
        correct = (logits.argmax(1) == targets).sum()
        sums += torch.tensor([loss.item(), correct.item(), len(targets)], dtype=torch.float64)
    dist.all_reduce(sums)
    loss, correct, count = sums.tolist()
    return {"accuracy": round(correct / count, 5), "loss": round(loss / count, 5), "images": int(count)}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically: to a temporary file, flushed to the disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise SystemExit(f"{path} cannot be written ({error}); is the volume full, or read-only?") from error


def replicate(
    network: nn.Module, settings: argparse.Namespace, *, device: torch.device, group: dist.ProcessGroup | None
) -> tuple[DistributedDataParallel, bool]:
    """Wrap a network in DDP, which averages the gradients; return it, and whether it is compiled."""
    model = DistributedDataParallel(network, process_group=group, forward_sync_buffers=False)
    if settings.simulated_ms_per_image:
        import simulated_accelerator  # beside this file

        simulated_accelerator.simulate(model, settings.simulated_ms_per_image, emit)
    compiled = settings.compile and device.type == "cuda" and shutil.which("cc") is not None
    if compiled:
        model.compile()
    return model, compiled


def finish(training: Training, result: Mapping[str, float], weights: Mapping[str, Any]) -> None:
    """Log the evaluation and save the model, on rank 0 alone: two writers would corrupt the file."""
    settings, about = training.settings, training.about
    if dist.get_rank() != 0:
        return
    emit("eval", **result, dataset=about["name"], synthetic=about["synthetic"])
    if settings.model_file:
        sys.stdout.write(f"saving model: {settings.model_file}\n")
        metadata = {"model": settings.model, "dataset": about["name"], "classes": about["classes"]}
        save(settings.model_file, metadata | {"epochs": settings.epochs, "weights": weights})


def prepare(
    settings: argparse.Namespace,
    *,
    read_dataset: Callable[..., tuple[Tensor, Tensor]] = read_images,
    build_model: Callable[[str, int], nn.Module] = make_model,
) -> Training:
    """Join, read the images, create model and optimizer."""
    init_distributed()
    device, group = choose_device()
    torch.manual_seed(settings.seed)  # the same first weights on every rank
    rng = torch.Generator().manual_seed(settings.seed * 1000 + dist.get_rank())  # but different crops

    about = describe(settings.data_dir)
    folder, limit = settings.data_dir, settings.limit
    train = [part.to(device) for part in read_dataset(folder, train=True, limit=limit)]
    test = [part.to(device) for part in read_dataset(folder, train=False, limit=limit // 5)]
    sampler = DistributedSampler[int](TensorDataset(*train), seed=settings.seed)  # each rank's own share

    network = build_model(settings.model, len(about["classes"])).to(device)
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
    return Training(
        settings, about, train, test, sampler, network, model, optimizer, schedule, rng, cast, steps
    )


def complete(training: Training, *, began: float) -> None:
    """Evaluate and save the model, and leave."""
    network = training.network
    emit("memory", **memory_of(network, training.optimizer))
    average_statistics(network)
    finish(training, evaluate(network, *training.test), network.state_dict())
    emit("end", steps=training.steps, seconds=round(time.perf_counter() - began, 3))
    dist.destroy_process_group()


def main(argv: list[str] | None = None) -> None:
    """Join, read, train, evaluate, save."""
    settings, began = parse_settings(argv), time.perf_counter()
    sys.stdout.write(f"reading {settings.data_dir}/cifar-10-batches-py/\n")
    training = prepare(settings)
    for epoch in range(settings.epochs):
        train_epoch(training, epoch)
    complete(training, began=began)
    sys.stdout.write("Finished Training\n")


if __name__ == "__main__":
    main()
