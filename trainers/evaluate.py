# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "pillow>=12", "torch>=2.15", "torchvision>=0.29"]
# ///
"""Evaluate a saved model on the test images, on one rank or on many.

    python trainers/evaluate.py --model-file models/cifar10.pt --data-dir data/cifar10
    torchrun --nproc-per-node 4 trainers/evaluate.py --model-file models/cifar10.pt --data-dir data/cifar10

The model file comes from a trainer with ``--model-file``, trained on CIFAR-10 or on image folders, or from
the parameter server with ``mnist_parameter_server.py``. The result is one ``eval`` event on stdout: accuracy,
loss, accuracy of each class, the confusion matrix (a row for each true class, a column for each prediction),
and the wrong predictions with the highest confidence, with images. Each of several ranks evaluates every n-th
image and reports its ``share``; counts are summed and mistakes gathered, as if one rank had evaluated all.
"""

import argparse
import base64
import pickle
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cifar10_ddp
import numpy as np
import torch
import torch.distributed as dist
from cifar10_ddp import choose_device, describe, emit, init_distributed, normalise, read_images
from torch import Tensor, nn

# Settings ---------------------------------------------------------------------------------------------------

SHORT = {"airplane": "plane", "automobile": "car"}  # the EKS workshop's names of two classes


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(description="Test a trained image classifier.")
    parser.add_argument("--model-file", type=Path, required=True, help="file saved by the trainer")
    parser.add_argument("--data-dir", type=Path, default=Path("data/cifar10"))
    parser.add_argument("--limit", type=int, default=0, help="test images to use; 0: all")
    parser.add_argument("--mistakes", type=int, default=12, help="how many of the worst mistakes to show")
    return parser.parse_args(argv)


# Data -------------------------------------------------------------------------------------------------------


def read_mnist(folder: Path, *, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Read MNIST's test images as bytes (n x 28 x 28 x 3, equal channels) and their labels."""
    raw, arrays = folder / "MNIST" / "raw", []
    for name, head in (("t10k-images-idx3-ubyte", 16), ("t10k-labels-idx1-ubyte", 8)):
        try:
            arrays.append(np.fromfile(raw / name, np.uint8, offset=head))
        except OSError as error:
            raise SystemExit(f"{raw / name} cannot be read ({error}); prepare the dataset again") from error
    images = torch.from_numpy(arrays[0].reshape(-1, 28, 28, 1)[: limit or None])
    return images.expand(-1, -1, -1, 3), torch.from_numpy(arrays[1][: limit or None]).long()


def as_records(pixels: Tensor) -> Tensor:
    """Preprocess grey images like the parameter server's model file does."""
    from mnist_parameter_server import dataset

    records = (b"\0" + image[..., 0].cpu().numpy().tobytes() for image in pixels)
    return torch.stack([dataset(record)[0] for record in records]).to(pixels.device)


# Model ------------------------------------------------------------------------------------------------------


def make_model(name: str, classes: int) -> nn.Module:
    """Return the trainers' network of that name."""
    if name == "mnist_parameter_server":
        from mnist_parameter_server import model

        return model()
    if name in ("resnet18", "resnet50", "resnet101"):
        from torchvision import models  # takes a second and is rarely needed

        return models.get_model(name, num_classes=classes)
    return cifar10_ddp.make_model(name, classes)


def load(path: Path, device: torch.device) -> tuple[nn.Module, dict[str, Any]]:
    """Load the network with its trained weights, and the file's metadata."""
    try:
        saved = torch.load(path, map_location=device, weights_only=True)  # tensors and plain values, no code
        network = make_model(saved["model"], len(saved["classes"])).to(device)
        network.load_state_dict(saved.pop("weights"))
    except FileNotFoundError as error:
        raise SystemExit(f"{path} does not exist; notebook 06 trains a model and saves it there") from error
    except (OSError, EOFError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        kind = type(error).__name__  # its message is about torch.load's arguments, which is misleading here
        raise SystemExit(f"{path} is not a model saved by a trainer ({kind}); train it again") from error
    return network.eval(), saved


# Test -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def predict(
    network: nn.Module,
    images: Tensor,
    prepare: Callable[[Tensor], Tensor] = normalise,
) -> Tensor:
    """Return the network's logits for all images (n x classes)."""
    return torch.cat([network(prepare(pixels)) for pixels in images.split(500)])


def tally(logits: Tensor, labels: Tensor, size: int) -> Tensor:
    """Compute the flat confusion matrix and the sum of the losses, which can be summed over ranks."""
    confusion = torch.bincount(labels * size + logits.argmax(1), minlength=size * size)
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
    return torch.cat([confusion, loss[None]]).double().cpu()


def report(sums: Tensor, classes: list[str]) -> dict[str, Any]:
    """Compute accuracy and loss, over all images and for each class, from the sums of `tally`."""
    confusion, images = sums[:-1].long().view(len(classes), len(classes)), int(sums[:-1].sum())
    correct, per_class = confusion.diagonal(), confusion.sum(1)
    shares = (correct / per_class.clamp(min=1)).tolist()
    return {
        "accuracy": round(int(correct.sum()) / images, 5),
        "loss": round(sums[-1].item() / images, 5),
        "correct": int(correct.sum()),
        "images": images,
        "per_class": {
            name: round(shares[index], 4) for index, name in enumerate(classes) if per_class[index]
        },
        "confusion": confusion.tolist(),
    }


def count(logits: Tensor, labels: Tensor, classes: list[str]) -> dict[str, Any]:
    """Compute accuracy, loss and confusion matrix of one rank that has all images."""
    return report(tally(logits, labels, len(classes)), classes)


def gather_results(
    sums: Tensor, mistakes: list[dict[str, Any]], most: int
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Add up the counts of all ranks, and keep the worst of their mistakes."""
    dist.all_reduce(sums)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mistakes)
    return sums, sorted(sum(gathered, []), key=lambda mistake: -mistake["confidence"])[:most]


def print_accuracy(result: dict[str, Any]) -> None:
    """Print the accuracy of the network and of each class, as in the EKS workshop."""
    print(f"Accuracy of the network on the {result['images']} test images: {100 * result['accuracy']:.0f} %")
    for name, share in result["per_class"].items():
        print(f"Accuracy for class: {SHORT.get(name, name):5s} is {100 * share:.1f} %", flush=True)


def worst_mistakes(logits: Tensor, labels: Tensor, images: Tensor, names: list[str], most: int) -> list[Any]:
    """Return the wrong predictions with the highest confidence, with their images."""
    confidence, predictions = logits.softmax(1).max(1)
    wrong = (predictions != labels).nonzero().flatten()
    chosen = wrong[confidence[wrong].argsort(descending=True, stable=True)][:most]
    return [
        {
            "image": index,
            "label": names[labels[index]],
            "prediction": names[predictions[index]],
            "confidence": round(confidence[index].item(), 4),
            "png": base64.b64encode(png(images[index].cpu().numpy())).decode(),
        }
        for index in chosen.tolist()
    ]


def png(pixels: np.ndarray) -> bytes:
    """Encode an image (height x width x 3 bytes) as PNG; the format is simple enough to need no library."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # filter type 0: none
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def main(argv: list[str] | None = None) -> None:
    """Load the model, read the images, predict, report."""
    began = time.perf_counter()
    settings = parse_settings(argv)
    init_distributed()
    device, _ = choose_device()
    network, saved = load(settings.model_file, device)
    about = describe(settings.data_dir)
    if about["classes"] != saved["classes"]:
        raise SystemExit(f"{settings.model_file} was trained on {saved['dataset']}, not on {about['name']}")
    if (settings.data_dir / "MNIST").is_dir():
        dataset, prepare = read_mnist(settings.data_dir, limit=settings.limit), as_records
    elif (settings.data_dir / "cifar-10-batches-py").is_dir():
        dataset, prepare = read_images(settings.data_dir, train=False, limit=settings.limit), normalise
    else:
        from tiny_imagenet_ddp import read_folders  # loads torchvision

        dataset, prepare = read_folders(settings.data_dir, train=False, limit=settings.limit), normalise
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = (part[rank::world_size].to(device) for part in dataset)
    data = {"dataset": about["name"], "synthetic": about["synthetic"]}
    emit("start", **data, test_images=len(labels), model=saved["model"], device=str(device))
    logits = predict(network, images, prepare)
    mistakes = worst_mistakes(logits, labels, images, about["classes"], settings.mistakes)
    mistakes = [mistake | {"image": mistake["image"] * world_size + rank} for mistake in mistakes]
    sums = tally(logits, labels, len(about["classes"]))
    if world_size > 1:
        share = report(sums, about["classes"])
        emit("share", **{name: share[name] for name in ("images", "correct", "accuracy", "confusion")})
    sums, mistakes = gather_results(sums, mistakes, settings.mistakes)
    if rank == 0:
        result = report(sums, about["classes"])
        emit("eval", **data, **result, mistakes=mistakes)
        print_accuracy(result)
    emit("end", seconds=round(time.perf_counter() - began, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
