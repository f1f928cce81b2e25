"""Stand in for a training in a queue: the ranks meet, take their time, and log when they begin and end.

It is started once in each pod, as ``kit.IndexedJob(…, launcher="python")`` does:

    NODE_RANK=0 MASTER_ADDR=localhost python sleep_trainer.py --ranks 1 --seconds 5
"""

import argparse
import json
import os
import time

import torch.distributed as dist


def emit(event: str) -> None:
    """Log an event as a line of JSON."""
    about = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    print(json.dumps({"event": event, "time": time.time(), **about}), flush=True)


parser = argparse.ArgumentParser(description="Take time in place of a training.")
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--seconds", type=float, default=4)
settings = parser.parse_args()
address = f"tcp://{os.environ['MASTER_ADDR']}:29500"
dist.init_process_group(
    "gloo", init_method=address, rank=int(os.environ["NODE_RANK"]), world_size=settings.ranks
)
emit("start")
time.sleep(settings.seconds)
emit("end")
dist.destroy_process_group()
