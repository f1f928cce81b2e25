"""Start two processes on each node with torch.multiprocessing.spawn, and sum over them."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(local_rank: int, node: int) -> None:
    address = f"tcp://{os.environ['MASTER_ADDR']}:29600"
    dist.init_process_group("gloo", init_method=address, rank=2 * node + local_rank, world_size=4)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of 4: sum {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(int(os.environ["GROUP_RANK"]),), nprocs=2)
