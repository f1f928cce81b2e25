"""Train a ResNet under the name and with the flags and output of the walk-through on TorchElastic.

    torchrun --nnodes=1:3 --rdzv_backend=etcd --rdzv_endpoint=etcd:2379 --rdzv_id=imagenet \\
        main.py --input_path /data/tiny-imagenet-200/train --epochs 10

The images are in one folder per class; without `--input_path` they are plain images of two colours. torchrun
restarts all ranks when a worker joins or leaves; `tiny_imagenet_elastic.py` continues instead.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import cifar10_ddp as ddp
import torch
import torch.distributed as dist
from tiny_imagenet_ddp import RECIPES, SIDE, make_model, read_folders
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

CLASSES, DRAWN = 2, 32  # of synthetic images
log = logging.getLogger("main")


def parse_settings() -> argparse.Namespace:
    """Parse the published flags."""
    parser = argparse.ArgumentParser(description="Train a ResNet on all ranks.")
    parser.add_argument("--input_path", type=Path, help="the training images, a folder for each class")
    parser.add_argument("--model", choices=sorted(RECIPES), default="resnet101")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32, help="images per step and rank")
    parser.add_argument("--num_data_workers", type=int, default=0, help="accepted and ignored")
    return parser.parse_args()


def read(place: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the images of a folder, which may be called train; without one, create synthetic images."""
    if place is None:
        log.info("Without --input_path the images are SYNTHETIC")
        labels = torch.arange(DRAWN) % CLASSES
        colours = (255 * labels // (CLASSES - 1)).to(torch.uint8)
        return colours[:, None, None, None].expand(-1, SIDE, SIDE, 3).contiguous(), labels
    log.info("Loading data from: %s", place)
    return read_folders(place.parent if place.name == "train" else place, train=True)


def log_start(settings: argparse.Namespace) -> None:
    """Log the rendezvous and the initial state."""
    rank, count = dist.get_rank(), dist.get_world_size()
    log.info("Got next rendezvous: rank %d, world size %d", rank, count)
    log.info("Rank %d: Model state synced from rank: 0", rank)
    state = {"batch_size": settings.batch_size, "num_data_workers": settings.num_data_workers}
    state |= {"data_start_index": 0, "iteration": 0, "epoch": f"0/{settings.epochs}"}
    sys.stderr.write("".join(f"\t{name}={value}\n" for name, value in state.items()))


def main() -> None:
    """Join, read, train."""
    logging.basicConfig(format="[%(levelname)s] %(asctime)s %(name)s: %(message)s", level=logging.INFO)
    settings = parse_settings()
    ddp.init_distributed()
    device, group = ddp.choose_device()
    images, labels = (part.to(device) for part in read(settings.input_path))
    log.info("Loading model: %s", settings.model)
    torch.manual_seed(0)
    network = make_model(settings.model, int(labels.max()) + 1).to(device)
    model = DistributedDataParallel(network, process_group=group)
    local, place = os.environ.get("LOCAL_RANK", "0"), device.type.upper()
    log.info("Rank [%d] running on %s [%s]", dist.get_rank(), place, local)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    sampler = DistributedSampler[int](TensorDataset(labels))
    log_start(settings)
    ddp.emit("start", model=settings.model, train_images=len(labels), batch_size=settings.batch_size)
    iteration = 0
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        for batch, chosen in enumerate(torch.tensor(list(sampler)).split(settings.batch_size)):
            samples = batch * settings.batch_size * dist.get_world_size()
            log.info("epoch: %d, iteration: %d, data_idx: %d", epoch, iteration, samples)
            chosen = chosen.to(device)
            pixels = ddp.normalise(images[chosen]).contiguous()
            loss = nn.functional.cross_entropy(model(pixels), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddp.emit("step", step=iteration, epoch=epoch, loss=round(loss.item(), 5))
            iteration += 1
    ddp.emit("end", steps=iteration)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
