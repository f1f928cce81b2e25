"""Meet other ranks, and end in one of several ways: ``torchrun ranks.py agree|raise|exit|wait``."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    line = [
        total.item(),
        sys.argv,
        os.getsid(0) == os.getpid(),
        os.environ["LOCAL_RANK"],
        torch.get_num_threads(),
    ]
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    dist.barrier()
    if sys.argv[1] == "wait":
        time.sleep(60)
    if dist.get_rank() == 1 and sys.argv[1] == "raise":
        raise ValueError("rank 1 fails")
    if dist.get_rank() == 1 and sys.argv[1] == "exit":
        os._exit(7)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
