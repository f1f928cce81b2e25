"""CIFAR-10 as in the EKS workshop and PyTorch's tutorial, with the standard loader and loop.

Pictures are opened one by one, each goes through its transforms, worker processes put them into batches; the
net runs in the numbers' own format; the loss is read after every step. Nothing is done to make it slow, and
nothing to make it fast. The net is the one that our trainer calls by the same name, read from its file.

    torchrun --nproc-per-node 1 cifar10_plain.py --trainer trainers/cifar10_ddp.py --data-dir data/cifar10

``--transforms imagenet`` takes those of PyTorch's ImageNet example in place of the tutorial's.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision import datasets, transforms

LAST = [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
TRANSFORMS = {
    "tutorial": LAST,
    "imagenet": [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), *LAST],
}


class Cifar10(datasets.CIFAR10):
    """torchvision's, which otherwise refuses files that are not the original ones: ours are made up."""

    train_list = [[f"data_batch_{number}", None] for number in range(1, 6)]
    test_list = [["test_batch", None]]
    meta = {"filename": "batches.meta", "key": "label_names", "md5": None}


def parse_settings() -> argparse.Namespace:
    """Read the flags; the defaults are the workshop's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", type=Path, required=True, help="where the net is defined")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="workshop")
    parser.add_argument("--transforms", choices=sorted(TRANSFORMS), default="tutorial")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def make_model(trainer: Path, name: str) -> nn.Module:
    """Return the trainer's network of this name."""
    spec = importlib.util.spec_from_file_location("trainer", trainer)
    assert spec and spec.loader, "it is a file of Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = module
    spec.loader.exec_module(module)
    return module.make_model(name, classes=10)


def main() -> None:
    """Train for some epochs and print the speed of each."""
    settings = parse_settings()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    images: Dataset[Any] = Cifar10(
        settings.data_dir, transform=transforms.Compose(TRANSFORMS[settings.transforms])
    )
    if settings.limit:
        images = Subset(images, range(settings.limit))
    loader = DataLoader(
        images,
        batch_size=settings.batch_size,
        sampler=DistributedSampler(images),
        num_workers=settings.workers,
        pin_memory=cuda,
    )
    model = DistributedDataParallel(make_model(settings.trainer, settings.model).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for epoch in range(settings.epochs):
        count, total, start = 0, 0.0, 0.0
        for index, (inputs, labels) in enumerate(loader):
            if index == 0:
                start = time.perf_counter()  # starting the workers is not counted
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += len(labels)
        seconds = time.perf_counter() - start
        _emit("epoch", epoch=epoch, loss=total / len(loader), images_per_s=round(count / seconds, 1))
    dist.destroy_process_group()


def _emit(event: str, **fields: object) -> None:
    line = {"event": event, "time": time.time(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    print(json.dumps(line | fields), flush=True)


if __name__ == "__main__":
    main()
