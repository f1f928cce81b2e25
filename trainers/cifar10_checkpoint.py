# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "nvidia-ml-py>=13", "torch>=2.15"]
# ///
"""Classify the photographs of CIFAR-10, with checkpoints from which a stopped run resumes.

This is ``cifar10_ddp.py`` plus one idea: rank 0 regularly saves the complete training state to the volume,
and a run that finds such a checkpoint resumes from it, even in the middle of an epoch. With the same number
of ranks no image is skipped or repeated, and the losses are those of an uninterrupted run. The number of
ranks cannot change during a run.

    python trainers/cifar10_checkpoint.py --data-dir data/cifar10 --checkpoint-dir data/checkpoints
    torchrun --nproc-per-node 2 trainers/cifar10_checkpoint.py --data-dir data/cifar10 \\
        --checkpoint-dir data/checkpoints --checkpoint-every 20

Stop it at any time and start it again with the same flags. The JSON lines on stdout now include
``checkpoint`` and ``resume``.
"""

import argparse
import io
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cifar10_ddp import (
    Training,
    at_least,
    average_statistics,
    complete,
    emit,
    make_parser,
    prepare,
    save,
    train_epoch,
)
from torch import Tensor

# Settings ---------------------------------------------------------------------------------------------------


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags: those of ``cifar10_ddp.py``, and where and when to save checkpoints."""
    parser = make_parser()
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("data/checkpoints"))
    parser.add_argument(
        "--checkpoint-every", type=at_least(1), default=100, help="steps; also after each epoch"
    )
    return parser.parse_args(argv)


# Loop -------------------------------------------------------------------------------------------------------


def run_settings(settings: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that must match for a run to continue another."""
    same = ("model", "epochs", "batch_size", "lr", "limit", "seed")
    return {name: getattr(settings, name) for name in same} | {"ranks": dist.get_world_size()}


def save_checkpoint(training: Training, epoch: int, step: int) -> None:
    """Save the state; ``epoch`` and ``step`` come next. Two are kept, as the newest may be damaged."""
    settings, network = training.settings, training.network
    began = time.perf_counter()
    average_statistics(network)
    generators: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, training.rng.get_state())  # each rank has its own random generator
    if dist.get_rank() == 0:
        state = {"network": network.state_dict(), "optimizer": training.optimizer.state_dict()}
        state["schedule"] = training.schedule.state_dict()
        path = settings.checkpoint_dir / f"epoch-{epoch:04}-step-{step:06}.pt"
        save(
            path,
            state | {"run": run_settings(settings), "epoch": epoch, "step": step, "generators": generators},
        )
        for old in sorted(settings.checkpoint_dir.glob("epoch-*.pt"))[:-2]:
            old.unlink(missing_ok=True)
        seconds, size = round(time.perf_counter() - began, 4), path.stat().st_size
        emit("checkpoint", epoch=epoch, next_step=step, file=path.name, bytes=size, seconds=seconds)


def find_checkpoint(folder: Path) -> tuple[bytes, list[str]]:
    """Return the newest complete checkpoint, or nothing, and the names of the incomplete ones."""
    broken: list[str] = []
    for path in sorted(folder.glob("epoch-*.pt"), reverse=True):
        with suppress(OSError, zipfile.BadZipFile):
            content = path.read_bytes()
            with zipfile.ZipFile(io.BytesIO(content)) as archive:  # the format of torch.save, with checksums
                if archive.testzip() is None:
                    return content, broken
        broken.append(path.name)
        path.rename(path.with_name(f"broken-{path.name}"))  # it must not count as one of the newest
    return b"", broken


def resume(training: Training) -> tuple[int, int]:
    """Load the newest checkpoint; return the epoch and step to continue with."""
    settings = training.settings
    checkpoint: list[Any] = [find_checkpoint(settings.checkpoint_dir) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(
        checkpoint
    )  # rank 0 selects the file: concurrent readers may see different files
    content, broken = checkpoint[0]
    if not content:
        if broken:
            emit("resume", epoch=0, next_step=0, broken=broken)
        return 0, 0
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if state["run"] != (current := run_settings(settings)):
        differences = ", ".join(
            f"{name}: {old}" for name, old in state["run"].items() if current[name] != old
        )
        message = f"{settings.checkpoint_dir} has a checkpoint of another run ({differences}); "
        raise SystemExit(message + "start with the same values, or with another --checkpoint-dir")
    training.network.load_state_dict(state["network"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["schedule"])
    training.rng.set_state(state["generators"][dist.get_rank()])
    emit("resume", epoch=state["epoch"], next_step=state["step"], broken=broken)
    return state["epoch"], state["step"]


def main(argv: list[str] | None = None) -> None:
    """Join, read, resume, train, evaluate, save."""
    settings, began = parse_settings(argv), time.perf_counter()
    training = prepare(settings)
    begin, first = resume(training)
    for epoch in range(begin, settings.epochs):

        def save_when_due(done: int, batches: int, epoch: int = epoch) -> None:
            if done % settings.checkpoint_every == 0 and done < batches:
                save_checkpoint(training, epoch, done)

        train_epoch(training, epoch, first=first, after_step=save_when_due)
        first = 0
        save_checkpoint(training, epoch + 1, first)
    complete(training, began=began)


if __name__ == "__main__":
    main()
