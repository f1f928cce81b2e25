# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15", "torchft>=0.2"]
# ///
"""Classify handwritten digits in replica groups that may be lost and come back (torchft).

This is ``trainers/digits_ddp.py`` plus one idea: before each step the groups agree, by torchft's
Lighthouse, on who takes part. A group that is lost costs one step; one that comes back gets the others'
weights first.

    torchft_lighthouse --min_replicas 1 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 REPLICA_GROUP_ID=0 torchrun --nproc-per-node 1 \\
        --master-port 29600 digits_torchft.py                # one group; others with other id and port

Source: the example train_ddp.py of https://github.com/meta-pytorch/torchft.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults reach 95% on the digits."""
    parser = argparse.ArgumentParser(description="Train a digit classifier in replica groups, by torchft.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and group")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--step-seconds", type=float, default=0, help="least duration, for who watches")
    parser.add_argument("--timeout", type=float, default=5, help="seconds that a collective may take")
    return parser.parse_args(argv)


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    """Read scikit-learn's 1,797 images of 8 x 8 pixels, and keep a fifth for the test."""
    file = Path(__file__).with_name("digits.csv.gz")
    table = np.random.default_rng(0).permutation(np.loadtxt(file, delimiter=",", dtype=np.float32))
    images, labels = torch.from_numpy(table[:, :-1]) / 16, torch.from_numpy(table[:, -1]).long()
    test = len(labels) // 5
    return TensorDataset(images[test:], labels[test:]), TensorDataset(images[:test], labels[:test])


def main(argv: list[str] | None = None) -> None:
    """Train until all groups have taken the steps; then test."""
    settings, group = parse_settings(argv), int(os.environ.get("REPLICA_GROUP_ID", "0"))
    torch.manual_seed(0)  # the same first weights in every group
    torch.set_num_threads(1)
    train, test = read_digits()
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    adam = torch.optim.Adam(network.parameters(), lr=settings.lr)

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": network.state_dict(), "optimizer": adam.state_dict()}

    groups = ProcessGroupGloo(timeout=timedelta(seconds=settings.timeout))
    manager = Manager(groups, load, save, min_replica_size=1, replica_id=f"group-{group}-")
    model, optimizer = DistributedDataParallel(manager, network), Optimizer(manager, adam)

    def emit(event: str, **fields: object) -> None:
        body = {"event": event, "time": time.time(), "rank": group, "world_size": manager.num_participants()}
        print(json.dumps(body | fields), flush=True)

    world, began = 0, time.perf_counter()
    while manager.current_step() < settings.steps:
        floor = time.perf_counter() + settings.step_seconds
        draw = torch.Generator().manual_seed(1_000 * manager.current_step() + group)
        images, labels = train[torch.randint(len(train), (settings.batch_size,), generator=draw)]
        optimizer.zero_grad()  # the groups meet; one that was away gets its weights here
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # averages the gradients over those that met
        optimizer.step()  # has no effect if one of them was lost meanwhile
        if manager.num_participants() != world:
            world = manager.num_participants()
            emit("rendezvous", round=manager.current_step(), pid=os.getpid())
        emit("step", step=manager.current_step(), loss=round(loss.item(), 5))
        time.sleep(max(0.0, floor - time.perf_counter()))
    with torch.no_grad():
        images, labels = test.tensors
        correct = int((network(images).argmax(1) == labels).sum())
    emit("eval", accuracy=round(correct / len(labels), 5), correct=correct, images=len(labels))
    emit("end", steps=manager.current_step(), seconds=round(time.perf_counter() - began, 3))
    manager.shutdown()


if __name__ == "__main__":
    main()
