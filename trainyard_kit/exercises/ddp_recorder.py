"""Run a training program on this rank, and note what it did; torchrun starts this for `checks.ddp`.

torchrun --nproc-per-node 2 ddp_recorder.py FOLDER PROGRAM [FLAG …]
"""

import hashlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset


def main(folder: str, program: str) -> None:
    """Run the program with its flags; write ``rank-N``, or ``error-N`` if it fails."""
    rank, images, optimizers, world_sizes = os.environ["RANK"], [], [], []
    read = TensorDataset.__getitem__

    def note_image(self, index):
        images.append(int(index))
        return read(self, index)

    def note_step(optimizer, *_):
        optimizers.append(optimizer)
        world_sizes.append(dist.get_world_size() if dist.is_initialized() else 0)

    TensorDataset.__getitem__ = note_image
    register_optimizer_step_post_hook(note_step)
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            Path(folder, f"error-{rank}").write_text(_explain(error, program))
            raise
    digest = hashlib.sha256()
    for group in optimizers[-1].param_groups if optimizers else ():
        for each in group["params"]:
            digest.update(each.detach().cpu().to(torch.float32).numpy().tobytes())
    done = {"world_size": world_sizes[-1] if world_sizes else 0, "images": images, "steps": len(optimizers)}
    Path(folder, f"rank-{rank}").write_text(json.dumps(done | {"weights": digest.hexdigest()}))


def _explain(error: BaseException, program: str) -> str:
    words = traceback.format_exception_only(error)[-1].strip()
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == program]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 0
    return f"line {line} raises {words}" if line else f"it raises {words}"


if __name__ == "__main__":
    recorder, folder, program, *flags = sys.argv
    sys.argv = [program, *flags]
    main(folder, program)
