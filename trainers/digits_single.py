# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Classify handwritten digits with one process.

The first trainer of the course; ``digits_ddp.py`` is this file plus one idea.

    python trainers/digits_single.py

Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

# Settings ---------------------------------------------------------------------------------------------------


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults reach 97% on the digits in a few seconds."""
    parser = argparse.ArgumentParser(description="Train a digit classifier.")
    parser.add_argument("--dataset", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("data/mnist"), help="where MNIST is")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--global-batch-size", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=5, help="steps between two `step` events")
    return parser.parse_args(argv)


def emit(event: str, **fields: object) -> None:
    """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
    line = {"event": event, "time": time.time(), "rank": 0, "world_size": 1}
    sys.stdout.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


# Data -------------------------------------------------------------------------------------------------------


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read scikit-learn's 1,797 images of 8 x 8 pixels and their labels; the file is beside this program."""
    file = Path(__file__).with_name("digits.csv.gz")
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 8, 8) / 16, table[:, -1].astype(np.int64)


def describe(folder: Path) -> dict[str, Any]:
    """Return the content of ``dataset.json``; written last, it marks the dataset as complete."""
    try:
        return json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        advice = f'kit.prepare_dataset("{folder.name}", volume=…), or notebook 04; then mount that volume'
        message = f"{folder} has no dataset.json, so the dataset is incomplete; create it with {advice}"
        raise SystemExit(message) from error


def read_mnist(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Read MNIST's training and test images of 28 x 28 pixels, with their labels.

    IDX files have four bytes, the last of which is the number of dimensions, then the dimensions, then bytes.
    """

    def read(name: str) -> np.ndarray:
        path = folder / "MNIST" / "raw" / name
        try:
            content = path.read_bytes()
            shape = np.frombuffer(content, ">i4", content[3], offset=4)
            return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        except (OSError, ValueError, IndexError) as error:
            raise SystemExit(f"{path} cannot be read ({error}); prepare the dataset again") from error

    sets = []
    for part in ("train", "t10k"):
        images = torch.from_numpy(read(f"{part}-images-idx3-ubyte").astype(np.float32)).unsqueeze(1)
        labels = torch.from_numpy(read(f"{part}-labels-idx1-ubyte").astype(np.int64))
        sets.append(TensorDataset(images.div_(255), labels))
    return sets[0], sets[1]


def split(images: np.ndarray, labels: np.ndarray, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Split into a training and a test set (a fifth)."""
    order = np.random.default_rng(seed).permutation(len(images))
    x, y = torch.from_numpy(images[order]).unsqueeze(1).contiguous(), torch.from_numpy(labels[order])
    test = len(x) // 5 + 1
    return TensorDataset(x[test:], y[test:]), TensorDataset(x[:test], y[:test])


# Model ------------------------------------------------------------------------------------------------------


def make_model(side: int) -> nn.Module:
    """Return a convolutional network for images of ``side`` x ``side`` pixels.

    For MNIST's 28 x 28 it is that of PyTorch's example: no padding, and dropout.
    https://github.com/pytorch/examples/blob/main/mnist/main.py
    """
    padding, dropout = (0, 0.5) if side == 28 else (1, 0)
    pooled = (side - 4 + 4 * padding) // 2
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=padding),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(dropout / 2),
        nn.Flatten(),
        nn.Linear(64 * pooled**2, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, 10),
    )


# Loop -------------------------------------------------------------------------------------------------------


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Sequence[Tensor]],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    epoch: int,
    log_every: int,
    device: torch.device,
) -> None:
    """Take one step for each batch."""
    model.train()
    began, count, total = time.perf_counter(), 0, 0.0
    for index, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        count, total = count + len(images), total + loss.item() * len(images)
        step = epoch * len(loader) + index
        if step % log_every == 0:
            rate = count / (time.perf_counter() - began)
            emit("step", step=step, epoch=epoch, loss=round(loss.item(), 5), images_per_s=round(rate, 1))
    seconds = time.perf_counter() - began
    emit(
        "epoch",
        epoch=epoch,
        loss=round(total / count, 5),
        seconds=round(seconds, 4),
        images_per_s=round(count / seconds, 1),
    )


@torch.no_grad()
def evaluate(model: nn.Module, test: TensorDataset, device: torch.device, *, show: int = 16) -> None:
    """Count correct predictions on the test set, and report them with a few of its images."""
    model.eval()
    images, labels = (part.to(device) for part in test.tensors)
    logits = torch.cat([model(part) for part in images.split(256)])
    loss = nn.functional.cross_entropy(logits, labels)
    correct = int((logits.argmax(1) == labels).sum())
    small = nn.functional.avg_pool2d(images[:show], max(1, images.shape[-1] // 14))  # a log line is short
    pixels = (small.squeeze(1) * 15).round().int().tolist()
    sample = [
        {"pixels": p, "label": t, "prediction": a}
        for p, t, a in zip(pixels, labels.tolist(), logits.argmax(1).tolist(), strict=False)
    ]
    emit(
        "eval",
        accuracy=round(correct / len(labels), 5),
        loss=round(loss.item(), 5),
        correct=correct,
        images=len(labels),
        sample=sample,
    )


def main(argv: list[str] | None = None) -> None:
    """Read, train, evaluate."""
    began = time.perf_counter()
    settings = parse_settings(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)

    if settings.dataset == "digits":
        about = {"name": "digits", "synthetic": False}
        train, test = split(*read_digits(), settings.seed)
    else:
        about = describe(settings.data_dir)
        train, test = read_mnist(settings.data_dir)
    loader = DataLoader(train, batch_size=settings.global_batch_size, shuffle=True)

    model = make_model(train.tensors[0].shape[-1]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    emit(
        "start",
        dataset=about["name"],
        synthetic=about["synthetic"],
        train_images=len(train),
        test_images=len(test),
        steps=steps,
        device=str(device),
        host=socket.gethostname(),
        threads=torch.get_num_threads(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )

    for epoch in range(settings.epochs):
        train_epoch(
            model, loader, optimizer, schedule, epoch=epoch, log_every=settings.log_every, device=device
        )
    evaluate(model, test, device)
    emit("end", steps=steps, seconds=round(time.perf_counter() - began, 3))


if __name__ == "__main__":
    main()
