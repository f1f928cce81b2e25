"""Measure the steps of `gpt.py`: memory, bytes sent and traces; slow down one rank.

The trainer shows how to train; it imports the measuring code from here.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import profile, record_function, schedule

SKIPPED, RECORDED = 3, 3  # steps before the trace, and in it


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this module."""
    add = parser.add_argument
    add("--trace-dir", type=Path, help="each rank writes a trace of some steps here")
    add("--slow-rank", type=int, default=-1, help="rank that computes for --slow-ms longer in each step")
    add("--slow-ms", type=float, default=0)
    add("--read-ms", type=float, default=0, help="additional time to read a batch, as from a slow volume")


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def memory_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Count the bytes that this rank holds of parameters, gradients and optimizer state."""
    parameters = list(network.parameters())
    state = [part for parts in optimizer.state.values() for part in parts.values() if torch.is_tensor(part)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    kinds: dict[str, Sequence[torch.Tensor]] = {"parameters": parameters, "gradients": gradients}
    kinds["optimizer"] = state
    return {
        f"{kind}_bytes": sum(local(tensor).nbytes for tensor in tensors) for kind, tensors in kinds.items()
    }


def bytes_sent() -> int:
    """Count the bytes that this machine has sent over all interfaces but the loopback."""
    table = Path("/proc/net/dev")
    lines = [line.split(":") for line in (table.read_text().splitlines()[2:] if table.exists() else ())]
    return sum(int(counters.split()[8]) for name, counters in lines if name.strip() != "lo")


@contextlib.contextmanager
def count_activations(network: Any, counts: dict[str, int]) -> Iterator[None]:
    """Count the bytes that the forward pass keeps for the backward pass, without the parameters.

    Recomputed blocks keep only their inputs, which the closure saves, not autograd.
    """
    storages: dict[
        int, torch.UntypedStorage
    ] = {}  # by address; kept until the end, so that no address is reused

    def record(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_parameter(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    def before_block(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        record(inputs[0])

    hooks = [block.register_forward_pre_hook(before_block) for block in network.blocks]
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        yield
    counts["activations_bytes"] = sum(storage.nbytes() for storage in storages.values())
    for hook in hooks:
        hook.remove()


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Check whether a tensor is a parameter, whole or gathered, or a view of one."""
    base = tensor if tensor._base is None else tensor._base
    return isinstance(base, nn.Parameter)


def trace(folder: Path | None, rank: int) -> contextlib.AbstractContextManager[Any]:
    """Trace some steps of this rank into ``rank-N.json.gz``, in Chrome's format; without a folder none.

    https://docs.pytorch.org/docs/stable/profiler.html
    """
    if folder is None:
        return contextlib.nullcontext(argparse.Namespace(step=lambda: None))
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / f"rank-{rank}.json.gz")
    steps = schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1)
    return profile(schedule=steps, on_trace_ready=lambda done: done.export_chrome_trace(path))


def compute_longer(settings: argparse.Namespace, rank: int) -> None:
    """Compute for additional milliseconds on one rank, to simulate a slow node."""
    end, matrix = time.perf_counter() + settings.slow_ms / 1000, torch.ones(256, 256)
    while rank == settings.slow_rank and time.perf_counter() < end:
        matrix = matrix @ matrix / 256


@contextlib.contextmanager
def reading(settings: argparse.Namespace) -> Iterator[None]:
    """Record the body as ``data`` in the trace, with a delay as by a slow volume."""
    with record_function("data"):
        time.sleep(settings.read_ms / 1000)
        yield
