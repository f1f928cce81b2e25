"""Train a ResNet whose state has 90 MB, by turns with and without a checkpoint being written beside it.

A turn begins with ``Checkpoints.save``, which copies the state, and lasts until the file is on the disk; the
same number of steps without a save follows. Both are timed as wholes: the copy counts, and whatever the
writing thread takes from the steps. The trainers' own ``checkpoints.py`` is read from its file.

    python checkpoint_steps.py --checkpoints trainers/checkpoints.py --folder DIR --turns 5
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torchvision import models

BATCH, SIDE, CLASSES = 32, 64, 200


def main() -> None:
    """Print one JSON object a turn: seconds a step while saving, and while not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("checkpoints", options.checkpoints)
    assert spec and spec.loader, "it is a file of Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    torch.manual_seed(0)
    network = models.resnet18(num_classes=CLASSES)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(0, CLASSES, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    with module.Checkpoints(options.folder, {"model": "resnet18"}) as checkpoints:
        for turn in range(options.turns + 1):
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            began, steps = time.perf_counter(), 0
            written: list[dict[str, object]] = []
            checkpoints.save(state, epoch=0, step=turn)
            while not written:
                step()
                written, steps = checkpoints.finished(), steps + 1
            saving = (time.perf_counter() - began) / steps
            began = time.perf_counter()
            for _ in range(steps):
                step()
            plain = (time.perf_counter() - began) / steps
            if turn:  # the first one warms up
                said = {"saving": saving, "plain": plain, "steps": steps} | written[0]
                sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
