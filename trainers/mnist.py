"""Train MNIST with `digits_ddp`, with the name, flags and output of the Indexed Job walk-through.

    torchrun --nnodes=4 --nproc_per_node=1 --node_rank=$RANK --master_addr=… --master_port=3389 \\
        mnist.py --epochs=1 --log-interval=1

The images are read from ``../data``, or downloaded; without a network they are made from scikit-learn's
digits.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import digits_ddp as ddp
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_settings() -> argparse.Namespace:
    """Parse the published flags."""
    parser = argparse.ArgumentParser(description="Train MNIST on all ranks.")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and rank")
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument(
        "--gamma", type=float, default=0.7, help="factor of the learning rate after each epoch"
    )
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="one step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    parser.add_argument("--data-dir", type=Path, default=Path("../data"))
    return parser.parse_args()


def synthesize(count: int, digits: np.ndarray, labels: np.ndarray, seed: int) -> TensorDataset:
    """Create images of 28 x 28 pixels: scikit-learn's digits, enlarged three times and randomly shifted."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(digits), size=count)
    large = np.pad(digits[chosen].repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
    for index, (down, right) in enumerate(generator.integers(-2, 3, size=(count, 2))):
        large[index] = np.roll(large[index], (down, right), (0, 1))
    return TensorDataset(torch.from_numpy(large).unsqueeze(1), torch.from_numpy(labels[chosen]))


def read(folder: Path) -> tuple[TensorDataset, TensorDataset, bool]:
    """Read, download or synthesize MNIST; the last value is true for synthetic images."""
    for place in (folder, folder / "mnist"):
        if (place / "MNIST" / "raw").is_dir():
            return *ddp.read_mnist(place), False
    try:
        from torchvision.datasets import MNIST

        place = Path(tempfile.mkdtemp())
        MNIST(str(place), train=True, download=True)
        return *ddp.read_mnist(place), False
    except (OSError, RuntimeError) as error:
        print(f"MNIST cannot be downloaded ({type(error).__name__}): the images are SYNTHETIC", flush=True)
    digits, labels = ddp.read_digits()
    known = len(digits) * 4 // 5  # test images come from other digits
    train = synthesize(60_000, digits[:known], labels[:known], seed=0)
    return train, synthesize(10_000, digits[known:], labels[known:], seed=1), True


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Sequence[torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    settings: argparse.Namespace,
    *,
    epoch: int,
    images: int,
    device: torch.device,
) -> None:
    """Take a step for each batch, and print the walk-through's lines as well as events."""
    model.train()
    began = time.perf_counter()
    for index, (pixels, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index % settings.log_interval == 0:
            samples, share = index * len(pixels), 100 * index / len(loader)
            print(
                f"Train Epoch: {epoch} [{samples}/{images} ({share:.0f}%)]\tLoss: {loss.item():.6f}",
                flush=True,
            )
            step = (epoch - 1) * len(loader) + index
            ddp.emit("step", step=step, epoch=epoch - 1, loss=round(loss.item(), 5))
        if settings.dry_run:
            break
    seconds = time.perf_counter() - began
    minutes, rest = divmod(round(seconds), 60)
    print(f"{index + 1}it [{minutes:02d}:{rest:02d}, {(index + 1) / seconds:5.2f}it/s]", flush=True)


def main() -> None:
    """Join, read, train, test."""
    settings = parse_settings()
    ddp.init_distributed()
    device, group = ddp.choose_device()
    device = torch.device("cpu") if settings.no_cuda else device
    torch.manual_seed(settings.seed)
    train, test, synthetic = read(settings.data_dir)
    sampler = DistributedSampler[int](train, seed=settings.seed)
    loader = DataLoader(train, batch_size=settings.batch_size, sampler=sampler)
    network = ddp.make_model(28).to(device)
    model = DistributedDataParallel(network, process_group=None if settings.no_cuda else group)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=settings.lr)
    about = {"name": "mnist", "synthetic": synthetic}
    steps = settings.epochs * len(loader)
    batch = settings.batch_size
    ddp.log_start(
        train,
        test,
        steps=steps,
        batch_size=batch,
        network=network,
        device=device,
        group=group,
        about=about,
    )
    for epoch in range(1, settings.epochs + 1):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, settings, epoch=epoch, images=len(train), device=device)
        for group_of_rate in optimizer.param_groups:
            group_of_rate["lr"] *= settings.gamma
        loss, correct, count = ddp.evaluate(network, test, device, show=0)
        share = f"{correct}/{count} ({100 * correct / count:.0f}%)"
        print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {share}\n", flush=True)
    if settings.save_model and dist.get_rank() == 0:
        torch.save(network.state_dict(), "mnist_cnn.pt")
    ddp.emit("end", steps=steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
