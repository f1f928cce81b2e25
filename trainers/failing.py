# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.15"]
# ///
"""Fit a line on several ranks, and fail on one rank in one of five ways.

Notebook 16 uses it as a quiz. `plan` draws from a seed how and on which rank each case fails, so that groups
get different answers. Gradients are averaged explicitly, so that a stack shows the collective.

    torchrun --nproc-per-node 4 trainers/failing.py --case c --seed 1

Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``: ``wait`` when a
rank enters a collective, ``step`` after a step, ``error`` before an exception ends it. A rank without a step
for ``--stack-after`` seconds writes its stack to stderr with faulthandler.
"""

import argparse
import faulthandler
import json
import os
import random
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FAILURES = ("deadlock", "loader", "memory", "nan", "straggler")
CASES = "abcde"
FIRST = 6  # the step of the failure
LEAK, MAX_LEAK = 60_000_000, 1_200_000_000  # bytes per step, and in total
BATCH = 16


def plan(seed: int, ranks: int) -> dict[str, tuple[str, int]]:
    """Draw how, and on which rank, each case fails."""
    chance = random.Random(seed)
    failures = chance.sample(FAILURES, len(FAILURES))
    return {case: (failure, chance.randrange(ranks)) for case, failure in zip(CASES, failures, strict=True)}


class Points(Dataset[Any]):
    """Points on a line; the loader process of one may be killed, as on a node without memory."""

    def __init__(self, length: int, killed_at: int | None) -> None:
        self.length, self.killed_at = length, killed_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.tensor([index / self.length])
        return x, 3 * x + 1


def log(event: str, **fields: object) -> None:
    """Print a line of JSON."""
    head = {"event": event, "time": time.time(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    print(json.dumps(head | fields), flush=True)


def average(model: torch.nn.Module) -> None:
    """Average the gradients of all ranks."""
    log("wait", collective="all_reduce")
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def evaluate_all() -> None:
    """Evaluate on far too many points."""
    total = 0
    while True:
        total += 1


def train(failure: str, steps: int, stack_after: float) -> None:
    """Train; ``failure`` is set on the rank that fails."""
    blocks = []
    points = Points(BATCH * steps, BATCH * (FIRST + 4) if failure == "loader" else None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(DataLoader(points, batch_size=BATCH, num_workers=1)):
        faulthandler.dump_traceback_later(stack_after)
        if failure == "memory":
            blocks.append(torch.ones(LEAK // 4))
            if len(blocks) * LEAK > MAX_LEAK:  # if a pod's memory is not limited, as in plain mode
                os.kill(os.getpid(), signal.SIGKILL)
        if failure == "nan" and step >= FIRST:
            x = torch.log(-x)
        if failure == "straggler" and step == FIRST:
            evaluate_all()
        if failure == "deadlock" and step == FIRST:
            log("wait", collective="barrier")
            dist.barrier()
        loss = torch.nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()} in step {step}")
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        log("step", step=step, loss=round(loss.item(), 4))
        time.sleep(0.05)
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Initialize the process group, and train."""
    parser = argparse.ArgumentParser(description="Train, and fail in one of five ways.")
    parser.add_argument("--case", choices=list(CASES), required=True)
    parser.add_argument("--seed", type=int, default=1, help="draws how each case fails")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stack-after", type=float, default=6, help="seconds without a step")
    settings = parser.parse_args()
    dist.init_process_group("gloo")
    failure, rank = plan(settings.seed, dist.get_world_size())[settings.case]
    try:
        train(failure if rank == dist.get_rank() else "", settings.steps, settings.stack_after)
    except Exception as error:
        log("error", text=str(error))
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
