# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Check the network between the ranks of a job as nccl-tests does: bus bandwidth by size, and correct sums.

If each rank has its own GPU, NCCL is measured, otherwise gloo between CPUs. It prints the versions,
interfaces and variables that NCCL depends on, and a table with the columns of nccl-tests:

    torchrun --nproc-per-node 4 trainers/nccl_check.py                       # four ranks on this machine
    trainyard launch trainers/nccl_check.py --nodes 4                        # one in each of four pods
    trainyard launch trainers/nccl_check.py --nodes 2 --gpus 8 -- --max-bytes 1073741824

*algbw* is bytes / time. *busbw* is algbw · 2 (n - 1) / n for an all-reduce of n ranks and algbw · (n - 1) / n
for an all-gather, which is comparable with a link's speed for any n:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. A single rank has no bus: 0.

Stdout has one JSON object per line as well; the event ``bandwidth`` has operation, bytes, seconds,
algbw_bytes_per_s, busbw_bytes_per_s and wrong.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from allreduce import FLOAT, connect  # beside this file
from digits_ddp import emit

# Bytes sent over a link for each byte of the result, for n ranks.
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n}
VARIABLES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
WARM_UP = 3
ROW = "{:>12} {:>11} {:>10} {:>11} {:>8} {:>8} {:>6}"


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(description="Measure bus bandwidth between the ranks of a job.")
    parser.add_argument("--min-bytes", type=int, default=1 << 10)
    parser.add_argument("--max-bytes", type=int, help="by default 256 MiB between GPUs, else 16 MiB")
    parser.add_argument("--factor", type=int, default=4, help="between two sizes")
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args(argv)


def describe(device: torch.device, backend: str) -> None:
    """Log how each rank communicates, and the settings that determine it."""
    place: dict[str, object] = {"host": socket.gethostname(), "device": str(device), "backend": backend}
    place |= {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    place["interfaces"] = [name for _, name in socket.if_nameindex() if name != "lo"]
    if device.type == "cuda":
        place["gpu"] = torch.cuda.get_device_name(device)
        place["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    emit("start", **place, variables=variables)


def sizes(settings: argparse.Namespace, device: torch.device) -> list[int]:
    """Return the sizes in bytes in ascending order, including the largest."""
    largest = settings.max_bytes or (256 << 20 if device.type == "cuda" else 16 << 20)
    size, smaller = max(FLOAT, settings.min_bytes), []
    while size < largest:
        smaller.append(size)
        size *= max(2, settings.factor)
    return [*smaller, largest]


def seconds_of(action: Callable[[], object], *, repeats: int, device: torch.device) -> float:
    """Return the mean time of an action on the slowest rank, in a loop without gaps, as nccl-tests do."""
    for _ in range(WARM_UP):
        action()
    _finish(device)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        action()
    _finish(device)
    slowest = torch.tensor((time.perf_counter() - began) / repeats)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    operation: str, size: int, *, repeats: int, group: dist.ProcessGroup, device: torch.device
) -> int:
    """Measure and check one operation of one size; rank 0 reports. Returns the number of wrong values."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = max(1, size // FLOAT // ranks) * ranks
    whole, part = torch.empty(count, device=device), torch.empty(count // ranks, device=device)

    def act() -> None:
        if operation == "all_reduce":
            dist.all_reduce(whole, group=group)
        else:
            dist.all_gather_into_tensor(whole, part, group=group)

    whole.fill_(rank + 1), part.fill_(rank + 1)
    act()
    if operation == "all_reduce":
        expected = torch.full_like(whole, ranks * (ranks + 1) / 2)
    else:
        expected = torch.arange(1, ranks + 1, device=device).float().repeat_interleave(count // ranks)
    wrong = (whole != expected).sum().cpu()
    dist.all_reduce(wrong)
    whole.zero_()  # repeated sums would overflow
    seconds = seconds_of(act, repeats=repeats, device=device)
    if rank == 0:
        size = count * FLOAT
        algorithm = size / seconds
        bus = algorithm * BUS[operation](ranks)
        fields = {"algbw_bytes_per_s": round(algorithm), "busbw_bytes_per_s": round(bus), "wrong": int(wrong)}
        emit("bandwidth", operation=operation, bytes=size, seconds=seconds, **fields)
        speeds = (f"{seconds * 1e6:.1f}", f"{algorithm / 1e9:.3f}", f"{bus / 1e9:.3f}", int(wrong))
        sys.stdout.write(ROW.format(operation, size, count, *speeds) + "\n")
    return int(wrong)


def main(argv: list[str] | None = None) -> None:
    """Measure each size; fail if a value is wrong."""
    settings = parse_settings(argv)
    device, group = connect()
    backend = dist.get_backend(group)
    describe(device, backend)
    if dist.get_rank() == 0:
        sys.stdout.write(f"# {backend}, {dist.get_world_size()} ranks; GB/s are 10^9 bytes per second\n")
        sys.stdout.write(
            ROW.format("operation", "bytes", "floats", "time (us)", "algbw", "busbw", "wrong") + "\n"
        )
    options = {"repeats": settings.repeats, "group": group, "device": device}
    wrong = sum(measure(name, size, **options) for name in BUS for size in sizes(settings, device))
    emit("end", wrong=wrong)
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit(f"{wrong} values are wrong: this network corrupts data")


if __name__ == "__main__":
    main()
