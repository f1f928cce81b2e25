"""Run a training program on this rank and record its images, steps and weights, for `checks.ddp`.

torchrun --nproc-per-node 2 ddp_recorder.py FOLDER PROGRAM [FLAG …]
"""

import hashlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

FIRST_STEPS = 4


def main(folder: str, program: str) -> None:
    """Run the program with its flags; write ``rank-N``, or ``error-N`` if it fails."""
    rank = os.environ["RANK"]
    images: list[int] = []
    optimizers: list[torch.optim.Optimizer] = []
    world_sizes: list[int] = []
    weights: list[str] = []
    next_index, destroy = _BaseDataLoaderIter._next_index, dist.destroy_process_group

    def record_images(self: _BaseDataLoaderIter) -> object:
        """Record the indices in the main process: a DataLoader may read images in workers."""
        index = next_index(self)
        chosen, dataset = index if isinstance(index, list) else [index], self._dataset
        while isinstance(dataset, Subset):
            chosen, dataset = [dataset.indices[number] for number in chosen], dataset.dataset
        images.extend(int(number) for number in chosen)
        return index

    def record_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        optimizers.append(optimizer)
        with Path(folder, f"steps-{rank}").open("a") as file:
            file.write(".")  # a byte per step: the progress line counts them
        world_sizes.append(dist.get_world_size() if dist.is_initialized() else 0)
        if len(optimizers) <= FIRST_STEPS:
            weights.append(_digest(optimizer))

    def record_end(*arguments: Any, **options: Any) -> None:
        """Record the last weights while their shards can still be gathered."""
        if optimizers:
            weights.append(_digest(optimizers[-1]))
        destroy(*arguments, **options)

    _BaseDataLoaderIter._next_index = record_images  # type: ignore[method-assign]
    dist.destroy_process_group = record_end
    register_optimizer_step_post_hook(record_step)
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            Path(folder, f"error-{rank}").write_text(_explain(error, program))
            raise
    if optimizers and (dist.is_initialized() or not world_sizes[-1]):
        weights.append(_digest(optimizers[-1]))
    record = {"world_size": world_sizes[-1] if world_sizes else 0, "images": images, "steps": len(optimizers)}
    Path(folder, f"rank-{rank}").write_text(json.dumps(record | {"weights": weights}))


def _digest(optimizer: torch.optim.Optimizer) -> str:
    """Hash all weights; weights sharded by `fully_shard` are gathered from the ranks."""
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            digest.update(whole.detach().cpu().to(torch.float32).numpy().tobytes())
    return digest.hexdigest()


def _explain(error: BaseException, program: str) -> str:
    message = traceback.format_exception_only(error)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == program]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 0
    return f"line {line} raises {message}" if line else f"it raises {message}"


if __name__ == "__main__":
    recorder, folder, program, *flags = sys.argv
    sys.argv = [program, *flags]
    main(folder, program)
