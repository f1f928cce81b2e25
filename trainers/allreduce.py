# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Measure communication between ranks: messages between each pair, and the all-reduce of all ranks.

This program does not train; its ranks join as those of ``digits_ddp.py``. After every step of data-parallel
training the ranks sum their gradients with an all-reduce. Its time has a part that does not depend on the
size (latency) and one that grows with it (bandwidth). Each pair plays ping-pong while the others wait, which
shows a slow link between two nodes separately; then all ranks sum an array together.

    torchrun --nproc-per-node 4 trainers/allreduce.py                                # four on this machine
    torchrun --nnodes 4 --nproc-per-node 1 --node-rank $RANK \\
        --master-addr $MASTER_ADDR --master-port 29500 trainers/allreduce.py         # one on each of four

Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``. Its own events are
``pair`` (a, b, latency_us, bandwidth_bytes_per_s) and ``allreduce`` (bytes, seconds, bandwidth_bytes_per_s).

For a pair, latency is half the round trip of one number, and bandwidth that of a large message in one
direction. For an all-reduce, it is the *bus bandwidth*: bytes / seconds * 2 (n - 1) / n for n ranks, which is
comparable with a link's speed for any n. The formula is derived in doc/PERFORMANCE.md of
https://github.com/NVIDIA/nccl-tests.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations

import torch
import torch.distributed as dist
from digits_ddp import choose_device, emit, init_distributed  # beside this file

FLOAT = 4  # bytes

# Settings ---------------------------------------------------------------------------------------------------


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags; the defaults take a few seconds for four ranks on two cores."""
    parser = argparse.ArgumentParser(description="Measure all-reduce between each pair of ranks.")
    parser.add_argument("--bytes", type=int, default=8 * 2**20, help="size of the large message")
    parser.add_argument("--repeats", type=int, default=5, help="ten times as many for the tiny message")
    return parser.parse_args(argv)


def connect() -> tuple[torch.device, dist.ProcessGroup]:
    """Join; return this rank's device and the group to measure: of GPUs if each rank has its own."""
    init_distributed()
    device, nccl = choose_device()
    if nccl is not None:
        return device, nccl
    assert dist.group.WORLD, "the ranks have joined"
    return torch.device("cpu"), dist.group.WORLD


# Measuring --------------------------------------------------------------------------------------------------


def median_seconds(action: Callable[[], object], *, repeats: int, device: torch.device) -> float:
    """Return the median time of an action; the first call connects the ranks and is not timed."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # CUDA calls are asynchronous
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def one_way(size: int, peer: int, *, repeats: int, group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the seconds that ``size`` bytes take to another rank: half of a round trip."""
    message = torch.zeros(size // FLOAT, device=device)

    def ping_pong() -> None:
        first, second = (dist.send, dist.recv) if dist.get_rank() < peer else (dist.recv, dist.send)
        first(message, peer, group=group)
        second(message, peer, group=group)

    return median_seconds(ping_pong, repeats=repeats, device=device) / 2


def measure_pair(
    a: int, b: int, settings: argparse.Namespace, *, group: dist.ProcessGroup, device: torch.device
) -> None:
    """Measure two ranks while the others wait; the first of the two reports."""
    if dist.get_rank() in (a, b):
        peer = b if dist.get_rank() == a else a
        latency = one_way(FLOAT, peer, repeats=10 * settings.repeats, group=group, device=device)
        duration = one_way(settings.bytes, peer, repeats=settings.repeats, group=group, device=device)
        if dist.get_rank() == a:
            bandwidth = round(settings.bytes / duration)
            emit("pair", a=a, b=b, latency_us=round(latency * 1e6, 1), bandwidth_bytes_per_s=bandwidth)
    dist.barrier()


def measure_all(settings: argparse.Namespace, *, group: dist.ProcessGroup, device: torch.device) -> None:
    """Measure the all-reduce of all ranks, from one number to the large message; rank 0 reports."""
    ranks = dist.get_world_size()
    check = torch.ones(1, device=device)
    dist.all_reduce(check, group=group)
    if check.item() != ranks:
        raise SystemExit(f"{ranks} ones add up to {check.item()}: this network corrupts data")
    for size in sorted({FLOAT, *(settings.bytes // part for part in (64, 8, 1))}):
        numbers = torch.zeros(size // FLOAT, device=device)
        add_up = partial(dist.all_reduce, numbers, group=group)
        duration = median_seconds(add_up, repeats=settings.repeats, device=device)
        if dist.get_rank() == 0:
            bandwidth = round(size / duration * 2 * (ranks - 1) / ranks)
            emit("allreduce", bytes=size, seconds=duration, bandwidth_bytes_per_s=bandwidth)


def main(argv: list[str] | None = None) -> None:
    """Join, measure each pair, measure all."""
    began = time.perf_counter()
    settings = parse_settings(argv)
    device, group = connect()
    backend = dist.get_backend(group)
    emit("start", device=str(device), backend=backend, host=socket.gethostname(), bytes=settings.bytes)
    for a, b in combinations(range(dist.get_world_size()), 2):
        measure_pair(a, b, settings, group=group, device=device)
    measure_all(settings, group=group, device=device)
    emit("end", seconds=round(time.perf_counter() - began, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
