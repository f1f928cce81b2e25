# /// script
# requires-python = ">=3.11"
# dependencies = ["scikit-learn>=1.9", "tensorboard>=2.21", "torch>=2.15"]
# ///
"""Classify handwritten digits. Run by torchrun: it knows nothing of Kubernetes, and prints for people.

    torchrun --nproc-per-node 2 train.py --epochs 2

It writes ``tensorboard/`` and ``model.pt`` to its working directory.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from net import Net
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter


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

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images[:1440], torch.tensor(digits.target[:1440]))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=settings["batch_size"], sampler=sampler)
    model = DistributedDataParallel(Net(settings["width"]).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    writer = SummaryWriter(options.output / "tensorboard") if rank == 0 else None

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

    if rank == 0:
        writer.close()
        torch.save(model.module.state_dict(), options.output / "model.pt")
        print(f"model.pt is written after {step + 1} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
