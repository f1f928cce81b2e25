"""Train the digits under torchft, one rank a replica group: ``torchrun torchft_digits.py GROUP``.

As long, and as often to be seen, as ``digits_elastic.py`` with the flags of `bench.elastic`.
Source: the example train_ddp.py of https://github.com/meta-pytorch/torchft.
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

STEP_SECONDS, BATCH = 0.1, 64


def main() -> None:
    """Train until the process is killed; write an event a step, and one where the groups have changed."""
    group = int(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    adam = torch.optim.Adam(model.parameters(), lr=0.004)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    groups = ProcessGroupGloo(timeout=timedelta(seconds=5))
    manager = Manager(groups, load, save, min_replica_size=1, replica_id=f"group-{group}")
    replica, optimizer, world = DistributedDataParallel(manager, model), Optimizer(manager, adam), 0
    while True:
        start = time.monotonic()
        images, labels = torch.rand(BATCH, 1, 8, 8), torch.randint(10, (BATCH,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(images), labels)
        loss.backward()
        optimizer.step()
        event = {"time": time.time(), "rank": group, "world_size": manager.num_participants()}
        if event["world_size"] != world:
            world = event["world_size"]
            more = {"round": manager.current_step(), "pid": os.getpid()}
            print(json.dumps({"event": "rendezvous", **event, **more}), flush=True)
        step = {"time": time.time(), "step": manager.current_step(), "loss": loss.item()}
        print(json.dumps({"event": "step", **event, **step}), flush=True)
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - start)))


if __name__ == "__main__":
    main()
