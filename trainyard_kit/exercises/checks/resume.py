"""23: resume on two ranks from a checkpoint of four. Ranks are forked, so that none imports torch again."""

import importlib
import multiprocessing
import random
import re
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe, explain

SAVING_RANKS, RESUMING_RANKS, SECONDS = 4, 2, 30
STEPS = random.randrange(4, 20)  # random, so that no constant is the saved step
FIRST_RATE, LAST_RATE = (
    0.05,
    0.02,
)  # changed by a schedule; not a tensor, so loading alone does not restore it
PEER_LOST = re.compile(
    "[Tt]imed out|(?:closed|reset) by peer|gloo/transport"
)  # gloo's errors about a rank that exited
MISSING = re.compile(r"Missing key in checkpoint state_dict: (\S+?)\.?$")
STUB = '''
def resume(model, optimizer, folder):
    """Load the checkpoint of any number of ranks; return the step to go on with."""
    return 0
'''
EXERCISE = Exercise(
    "resume", seconds=60, stub=STUB, timeout_advice="does a rank wait for a call that the other never makes?"
)


def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build a model that is sharded over the ranks, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), FIRST_RATE)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Take a step on the same images for any number of ranks."""
    images = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
    (model(images) - images.roll(1, 1)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[torch.Tensor]:
    sharded = (parameter for parameter in model.parameters() if isinstance(parameter, DTensor))
    return [parameter.full_tensor().detach().clone() for parameter in sharded]


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return both moments of all parameters that have them."""
    states = [optimizer.state.get(weight, {}) for weight in optimizer.param_groups[0]["params"]]
    tensors = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq") if name in state]
    return [tensor.full_tensor().clone() for tensor in tensors]


def train_and_save(folder: Path) -> dict[str, Any]:
    """Train, save, and take the next step."""
    model, optimizer = build(seed=1)
    for number in range(STEPS):
        step(model, optimizer, number)
    for group in optimizer.param_groups:
        group["lr"] = LAST_RATE
    model_state, optimizer_state = get_state_dict(model, optimizer)
    checkpoint.save({"model": model_state, "optimizer": optimizer_state, "step": STEPS}, checkpoint_id=folder)
    state = {"weights": weights(model), "moments": moments(optimizer)}
    step(model, optimizer, STEPS)
    return state | {"next": weights(model)}


def resume_and_step(resume: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """Let the learner's function load the checkpoint, and take the next step."""
    model, optimizer = build(seed=2)
    returned = resume(model, optimizer, str(folder))
    kind = "step" if type(returned) is int else "other"
    state = {kind: returned if kind == "step" else describe(returned)}
    state |= {"weights": weights(model), "moments": moments(optimizer)}
    state["rates"] = [float(group["lr"]) for group in optimizer.param_groups]
    step(model, optimizer, STEPS)
    return state | {"next": weights(model)}


def _rank(rank: int, ranks: int, function: Callable[..., Any], folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store-{ranks}"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=SECONDS)
    )
    try:
        outcome = function()
    except BaseException as error:  # noqa: BLE001 CheckpointException is not an Exception
        outcome = {"error": explain(error)}
    torch.save(outcome, folder / f"{ranks}-{rank}.part")
    (folder / f"{ranks}-{rank}.part").rename(folder / f"{ranks}-{rank}")


def on_ranks(ranks: int, function: Callable[..., Any], folder: Path) -> list[dict[str, Any]]:
    """Call a function on a number of ranks; return their results."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rank, args=(rank, ranks, function, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    outcomes = [torch.load(path, weights_only=True) for path in sorted(folder.glob(f"{ranks}-?"))]
    for process in processes:  # all before the first join: gloo aborts a rank whose peer exits
        process.kill()
    for process in processes:
        process.join()
    errors = [result["error"] for result in outcomes if "error" in result]
    reasons = [error for error in errors if not PEER_LOST.search(error)]  # of the rank that caused it
    if reasons and (missing := MISSING.search(reasons[0])):
        raise NotYet(
            f"the checkpoint has no {missing[1]}: its keys are model, optimizer and step, and below them the "
            "names that get_state_dict(model, optimizer) returns"
        )
    if reasons:
        folder_hint = ": pass the folder by keyword, checkpoint_id=folder" if "metadata" in reasons[0] else ""
        raise NotYet(reasons[0] + folder_hint)
    if not outcomes:
        raise NotYet("no rank finishes: look for a loop that does not end")
    if errors or len(outcomes) < ranks:
        raise NotYet(
            "a rank waits for another: all ranks call get_state_dict, checkpoint.load and set_state_dict"
        )
    return outcomes


@lru_cache(maxsize=1)
def saved_checkpoint() -> tuple[tempfile.TemporaryDirectory[str], dict[str, Any]]:
    """Return the directory with the checkpoint of four ranks, and their state."""
    importlib.import_module("torch._dynamo")  # fully_shard imports it: do so once, not on each rank
    folder = tempfile.TemporaryDirectory(prefix="exercise-")
    checkpoint = Path(folder.name, "checkpoint")
    return folder, on_ranks(SAVING_RANKS, lambda: train_and_save(checkpoint), Path(folder.name))[0]


@lru_cache(maxsize=1)
def run(resume: Callable[..., Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the state saved by four ranks, and that of two ranks after the learner's function."""
    folder, before = saved_checkpoint()
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder_name:
        return before, on_ranks(
            RESUMING_RANKS,
            lambda: resume_and_step(resume, Path(folder.name, "checkpoint")),
            Path(folder_name),
        )


def all_close(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        torch.allclose(tensor, other, atol=1e-5) for tensor, other in zip(first, second, strict=True)
    )


@EXERCISE.check("both ranks finish", essential=True)
def ranks_finish(resume: Answer) -> None:
    run(resume)


@EXERCISE.check("both ranks have the weights that four ranks saved")
def loads_weights(resume: Answer) -> None:
    before, now = run(resume)
    if not all(all_close(rank["weights"], before["weights"]) for rank in now):
        raise NotYet("the weights differ: checkpoint.load fills the dict of get_state_dict in place")


@EXERCISE.check("the optimizer has the moments that were saved")
def loads_moments(resume: Answer) -> None:
    before, now = run(resume)
    if not all(all_close(rank["moments"], before["moments"]) for rank in now):
        if not any(rank["moments"] for rank in now):
            raise NotYet(
                "the optimizer has no moments: a new one has none to fill, but get_state_dict creates them; "
                "then load the key optimizer, and restore it with set_state_dict"
            )
        raise NotYet(
            "Adam starts from zero: load the key optimizer as well, and restore it with set_state_dict"
        )


@EXERCISE.check("it returns the step to resume with")
def returns_step(resume: Answer) -> None:
    for rank in run(resume)[1]:
        if rank.get("step") != STEPS:
            step = rank.get("step", rank.get("other"))
            advice = (
                "return the loaded step" if step == "None" else
                "the saved number is already that of the next step" if step == STEPS + 1 else
                "it is not an int" if step in (f"'{STEPS}'", f"{STEPS}.0") else
                "checkpoint.load stores it in the dict under the key step"
            )  # fmt: skip
            raise NotYet(f"it returns {step}, and should return {STEPS}: {advice}")


@EXERCISE.check("the next step is that of an uninterrupted run", last=True)
def next_step_matches(resume: Answer) -> None:
    before, now = run(resume)
    if not all(all_close(rank["next"], before["next"]) for rank in now):
        rates = sorted({rate for rank in now for rate in rank["rates"]})
        if rates != [LAST_RATE]:
            shown = ", ".join(f"{rate:g}" for rate in rates)
            raise NotYet(
                f"the learning rate is {shown}, and was {LAST_RATE:g}: it is not a tensor, so loading alone "
                "does not restore it; set_state_dict does"
            )
        raise NotYet(
            "the weights differ after the next step: restore both dicts of get_state_dict with set_state_dict"
        )
