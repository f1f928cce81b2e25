"""Train ranks of which one hangs in the way that the first argument names."""

import contextlib
import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

WORLD = int(os.environ["WORLD_SIZE"])
LAST = WORLD - 1
MEETINGS = ("comes-late", "leaves-before", "other-port", "other-rank", "larger-world", "one-larger-world")


def other_op(rank, group):
    if rank == LAST:
        dist.broadcast(torch.ones(4), src=LAST)
    else:
        dist.all_reduce(torch.ones(4))


def extra_barrier(rank, group):
    if rank == LAST:
        dist.barrier()
    dist.all_reduce(torch.ones(4))


def only_rank_0(rank, group):
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def swallowed(rank, group):
    with contextlib.suppress(ValueError):
        if rank == LAST:
            raise ValueError("a bad batch")
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def sub_group(rank, group):
    if rank != 0:
        dist.all_reduce(torch.ones(4), group=group)


def group_order(rank, group):
    groups = [group, dist.group.WORLD]
    for next_group in groups if rank % 2 else groups[::-1]:
        dist.all_reduce(torch.ones(4), group=next_group)


def send_alone(rank, group):
    if rank == LAST:
        dist.send(torch.ones(4), dst=0)
    dist.barrier()


def all_receive(rank, group):
    dist.recv(torch.ones(4), src=(rank + 1) % WORLD)


def waits_for_a_queue(rank, group):
    if rank == LAST:
        queue.Queue().get()
    dist.barrier()


def sleeps(rank, group):
    if rank == LAST:
        time.sleep(1000)
    dist.barrier()


def computes(rank, group):
    while rank == LAST:
        pass
    dist.barrier()


def stops(rank, group):
    if rank == LAST:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def ends_early(rank, group):
    """Leave the loop one step before the others, and wait for a thread at the end."""
    if rank == LAST:
        threading.Event().wait()
    dist.all_reduce(torch.ones(4))


def slow(rank, group):
    for _ in range(600):
        time.sleep(0.4 if rank == LAST else 0.05)
        dist.all_reduce(torch.ones(4))
        print("step", flush=True)


def well(rank, group):
    for step in range(100_000):
        dist.all_reduce(torch.ones(4))
        print("step", step, flush=True)
        time.sleep(0.02)


def meet(way, rank):
    """Form the process group, in which the last rank, or each, is not as the others."""
    is_last, options = rank == LAST, {}
    if way == "comes-late" and is_last:
        time.sleep(1000)
    if way == "leaves-before" and is_last:
        sys.exit(0)
    if way == "other-port" and is_last:
        os.environ |= {"MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    if way == "other-rank" and is_last:
        options = {"rank": 0, "world_size": WORLD}
    if way == "larger-world" or (way == "one-larger-world" and is_last):
        options = {"rank": rank, "world_size": WORLD + 1}
    dist.init_process_group("gloo", **options)


def main():
    rank = int(os.environ["RANK"])
    if sys.argv[1] in MEETINGS:
        print("ready", flush=True)
    meet(sys.argv[1], rank)
    group = dist.new_group([*range(WORLD)], group_desc="pairs")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
        dist.barrier(group)
    print("ready", flush=True)
    globals()[sys.argv[1].replace("-", "_")](rank, group)
    dist.barrier()


if __name__ == "__main__":
    main()
