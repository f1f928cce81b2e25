"""End ranks while gloo's threads still drop the tensors of the last collective; print the exit codes."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist


class Last:
    """Gives up the interpreter's lock while modules are torn down."""

    def __del__(self, sleep=time.sleep) -> None:
        sleep(0.1)


def rank_of(store: str) -> int | None:
    """Fork two ranks and return the number of one in it; print in the parent how they ended."""
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            return rank
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], flush=True)
    return None


def main() -> None:
    folder = tempfile.mkdtemp()
    ranks = (rank_of(f"{folder}/{number}") for number in range(int(sys.argv[1])))
    if any(rank is not None for rank in ranks):
        sys.setswitchinterval(10)  # who waits for the interpreter's lock, waits until it is given up
        tensor = torch.ones(1000)
        tensor.of = "this rank"  # an attribute, so that Python's object lives as long as the tensor
        dist.all_reduce(tensor)
        if "exit" in sys.argv:
            sys.exit(3)


if __name__ == "__main__":
    last = Last()
    main()
