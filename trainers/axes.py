# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.15"]
# ///
"""Train one network on a mesh of ranks with two axes: data × tensor, or data × pipeline.

Whatever the mesh, a step has the same images and the same weights, so the losses are the same:

    torchrun --nproc-per-node 4 trainers/axes.py
    torchrun --nproc-per-node 4 trainers/axes.py --tensor 2
    torchrun --nproc-per-node 4 trainers/axes.py --stages 2 --micro-batches 4

Each rank logs how many weights it holds and how many bytes it sends in a step. With ``--stage-ms`` a
simulated accelerator takes this time for a stage's forward pass, divided among the micro-batches, and twice
as long for the backward pass; a rank then also logs when both begin and end for each micro-batch, which shows
the bubble.
Stdout has one JSON object per line, with ``event``, ``time``, ``rank`` and ``world_size``.
"""

import argparse
import json
import os
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The data that operations send: of a process group, of DTensor, and of a pipeline.
KINDS = {"allreduce": "gradients", "all_reduce": "activations", "send": "activations"}
WIDTH, HIDDEN, BLOCKS, CLASSES, LR = 64, 256, 4, 10, 0.1


class Block(nn.Module):
    """A small network with a residual connection, as in a transformer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.up, self.down, self.seconds = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), seconds
        self.slots: list[list[Any]] = []  # direction, begin, end
        if seconds:  # the gradient of the first matrix is computed last
            self.up.weight.register_post_accumulate_grad_hook(lambda _: self.slots[-1].append(time.time()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        began = time.time()
        time.sleep(self.seconds)  # the simulated accelerator
        result: torch.Tensor = images + self.down(functional.gelu(self.up(images)))
        if self.seconds:
            self.slots.append(["forward", began, time.time()])
            result.register_hook(self.begin_backward)
        return result

    def begin_backward(self, _: torch.Tensor) -> None:
        """Start the backward pass, which takes the simulated accelerator twice as long."""
        self.slots.append(["backward", time.time()])
        time.sleep(2 * self.seconds)


class TrafficCounter(TorchDispatchMode):
    """Count the bytes of gradients and activations in this rank's collectives and sends."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        if space in ("c10d", "_c10d_functional") and (kind := KINDS.get(name.split(".")[0].rstrip("_"))):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.bytes[kind] += sum(tensor.nbytes for tensor in tensors)
        return func(*args, **(kwargs or {}))


def parse_settings(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(description="Train one network on a mesh of ranks.")
    add = parser.add_argument
    add("--tensor", type=int, default=1, help="ranks that divide each matrix")
    add("--stages", type=int, default=1, help="ranks that divide the layers as a pipeline")
    add("--micro-batches", type=int, default=4, help="per step of a pipeline")
    add("--stage-ms", type=float, default=0, help="simulated time of a forward pass; twice for backward")
    add("--batch-size", type=int, default=64, help="images per step, over all ranks")
    add("--steps", type=int, default=20)
    settings = parser.parse_args(argv)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if min(settings.tensor, settings.stages) > 1:
        parser.error("choose --tensor or --stages, not both")
    if world % max(settings.tensor, settings.stages):
        parser.error(f"{world} ranks: --tensor or --stages must divide them evenly")
    return settings


def emit(event: str, **fields: object) -> None:
    """Log a line of JSON."""
    head = {"event": event, "time": time.time(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    print(json.dumps(head | fields), flush=True)


def make_batch(size: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw random images, labelled by a fixed network."""
    teacher = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(0))
    images = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(seed))
    return images, (images @ teacher).argmax(1)


def split_matrices(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Divide the matrices of each block by columns, then by rows: a block needs one all-reduce."""
    plan = {f"{number}.up": ColwiseParallel() for number in range(BLOCKS)}
    parallelize_module(model, mesh, plan | {f"{number}.down": RowwiseParallel() for number in range(BLOCKS)})


def build_stage(model: nn.Sequential, mesh: DeviceMesh, *, micro_batches: int) -> ScheduleGPipe:
    """Build this rank's stage of the pipeline."""
    stage, stages = mesh.get_local_rank(), mesh.size()
    bounds = [BLOCKS * number // stages for number in range(stages)] + [len(model)]
    part = model[bounds[stage] : bounds[stage + 1]]
    pipeline = PipelineStage(part, stage, stages, torch.device("cpu"), group=mesh.get_group())
    return ScheduleGPipe(pipeline, micro_batches, loss_fn=functional.cross_entropy)


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients over the ranks with the same weights and different images."""
    for weight in model.parameters() if mesh.size() > 1 else ():
        if weight.grad is not None:
            grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
            dist.all_reduce(grad, group=mesh.get_group())
            grad /= mesh.size()


def local_weights(model: nn.Module) -> int:
    """Count the weights that this rank holds."""
    weights = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in model.parameters())
    return sum(weight.numel() for weight in weights)


def main() -> None:
    settings = parse_settings()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    axis, size = ("tensor", settings.tensor) if settings.tensor > 1 else ("stage", settings.stages)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // size, size), mesh_dim_names=("data", axis))
    data, other = mesh["data"], mesh[axis]
    pause = settings.stage_ms / 1000 / settings.micro_batches / (BLOCKS // settings.stages)
    model: Any = nn.Sequential(*(Block(pause) for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES))
    schedule = None
    if settings.stages > 1:
        schedule = build_stage(model, other, micro_batches=settings.micro_batches)
        model = schedule._stage.submod
    elif settings.tensor > 1:
        split_matrices(model, other)
    optimizer = torch.optim.SGD(model.parameters(), LR)
    emit(
        "start",
        mesh=[data.size(), other.size()],
        axis=axis,
        data=data.get_local_rank(),
        place=other.get_local_rank(),
        held=local_weights(model),
        host=os.uname().nodename,
    )
    for step in range(settings.steps):
        images, labels = make_batch(settings.batch_size, seed=1 + step)
        share = slice(data.get_local_rank(), None, data.size())
        began = time.perf_counter()
        with TrafficCounter() as traffic:
            loss = forward_and_backward(model, schedule, images[share], labels[share], place=other)
            average_gradients(model, data)
        seconds = time.perf_counter() - began
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        blocks = [block for block in model if isinstance(block, Block)]
        slots = [slot for block in blocks for slot in block.slots]
        emit(
            "step",
            step=step,
            loss=loss.item() / data.size() / (settings.tensor),
            seconds=seconds,
            place=other.get_local_rank(),
            slots=slots,
            **{f"{kind}_bytes": traffic.bytes[kind] for kind in set(KINDS.values())},
        )
        for block in blocks:
            block.slots.clear()
    emit("end")
    dist.destroy_process_group()


def forward_and_backward(
    model: nn.Module,
    schedule: ScheduleGPipe | None,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    place: DeviceMesh,
) -> torch.Tensor:
    """Compute the gradients; return the loss, or zero on a rank whose stage is not the last."""
    if schedule is None:
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss.detach()
    losses: list[torch.Tensor] = []
    if place.get_local_rank() == 0:
        schedule.step(images)
    elif place.get_local_rank() == place.size() - 1:
        schedule.step(target=labels, losses=losses)
    else:
        schedule.step()
    return torch.stack(losses).mean().detach() if losses else torch.zeros(())


if __name__ == "__main__":
    main()
