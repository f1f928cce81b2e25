# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "tensorboard>=2.21", "torch>=2.15"]
# ///
"""Classify handwritten digits. Run by torchrun: it knows nothing of Kubernetes, and prints for people.

    torchrun --nproc-per-node 2 train.py --epochs 2

It writes ``model.pt`` to its working directory, and ``tensorboard/`` where TensorBoard is installed.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from net import Net
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    SummaryWriter = None


def main():
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path())
    options = parser.parse_args()
    settings = json.loads(Path(__file__).with_name("settings.json").read_text())

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    digits = torch.from_numpy(
        np.loadtxt(Path(__file__).with_name("digits.csv.gz"), np.float32, delimiter=",")
    )
    images, labels = digits[:1440, :-1].view(-1, 1, 8, 8) / 16, digits[:1440, -1].long()
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=settings["batch_size"], sampler=sampler)
    model = DistributedDataParallel(Net(settings["width"]).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    writer = SummaryWriter(options.output / "tensorboard") if rank == 0 and SummaryWriter else None

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        began, seen = time.perf_counter(), 0
        for batch, (x, y) in enumerate(loader):
            step = epoch * len(loader) + batch
            loss = cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
            if step % 5 == 0:
                rate = seen / (time.perf_counter() - began)
                print(f"epoch {epoch} step {step}: cross-entropy {loss.item():.4f}, {rate:.0f} images/s")
                if writer:
                    writer.add_scalar("loss/train", loss.item(), step)
                    writer.add_scalar("images per second", rate, step)

    if writer:
        writer.close()
    if rank == 0:
        torch.save(model.module.state_dict(), options.output / "model.pt")
        print(f"model.pt is written after {step + 1} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
