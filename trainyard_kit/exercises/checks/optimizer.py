"""10: an optimizer for the stale gradients of a parameter server, run by the course's own server code.

Two shards of a small network receive gradients of the digits, each computed from parameters that are a fixed
number of versions old: with many workers this happens at random.
"""

import gzip
import importlib.util
import sys
from collections import deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib import config
from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

if TYPE_CHECKING:
    import torch

UPDATES, MINIBATCH, ACCURACY, STALE = 400, 50, 0.85, 8
NOTABLE = 0.2  # gain in accuracy by another learning rate that is not due to chance
FACTORS = (0.1, 10, 0.01, 100)  # multiples of the learning rate that are tried for advice, until one suffices
MOMENTUM, DECAY = 0.5, 0.01  # values from which they are named as the cause
FRESH = "it learns from fresh gradients"
STUB = """
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
"""
EXERCISE = Exercise("optimizer", seconds=60, stub=STUB)


@cache
def digits() -> "tuple[torch.Tensor, torch.Tensor]":
    """Read the digits, N × 64, and their labels from scikit-learn's file, without its slow import."""
    import numpy
    import torch

    spec = importlib.util.find_spec("sklearn")
    assert spec and spec.origin, "the kit needs it"
    package = Path(spec.origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = torch.from_numpy(numpy.loadtxt(file, delimiter=","))
    return table[:, :-1].float() / 16, table[:, -1].long()


def network() -> "torch.nn.Module":
    """Build the network with the same weights each time."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def accuracy(optimizer: Answer, staleness: int, factor: float = 1) -> float:
    """Train on two servers with gradients of this staleness; return the accuracy from 0 to 1.

    The learning rate is multiplied by ``factor``.
    """

    def scaled(parameters: "Iterable[torch.Tensor]") -> "torch.optim.Optimizer":
        built = optimizer(parameters)
        for group in built.param_groups:
            group["lr"] = group["lr"] * factor
        return built

    sys.path.append(str(config.DATA / "trainers"))
    import torch
    from parameter_server import shards
    from parameter_server.shard import Shard

    model, (images, labels) = network(), digits()
    servers = [
        Shard(groups, scaled, grads_to_wait=1, staleness_bound=staleness) for groups in shards.plan(model, 2)
    ]
    names = [name for name, _ in model.named_parameters()]
    older: deque[list[torch.Tensor]] = deque(maxlen=staleness + 1)
    generator = torch.Generator().manual_seed(0)
    for update in range(UPDATES):
        older.append([parameter.detach().clone().requires_grad_() for parameter in model.parameters()])
        chosen = torch.randint(len(images), (MINIBATCH,), generator=generator)
        outputs = torch.func.functional_call(
            model, dict(zip(names, older[0], strict=True)), (images[chosen],)
        )
        loss = torch.nn.functional.cross_entropy(outputs, labels[chosen])
        gradients = dict(zip(names, torch.autograd.grad(loss, older[0]), strict=True))
        for server in servers:
            parts = [
                torch.cat([gradients[member.name].flatten() for member in group.members])
                for group in server.groups
            ]
            version = max(0, server.version - len(older) + 1)
            server.push(
                0, update, version=version, incarnation=server.incarnation, tensors=shards.pack(parts)
            )
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


@EXERCISE.check("it returns a PyTorch optimizer", essential=True)
def returns_optimizer(optimizer: Answer) -> None:
    import torch

    returned = optimizer(list(network().parameters()))
    if not isinstance(returned, torch.optim.Optimizer):
        raise NotYet(
            f"it returns {describe(returned)}, and should return an optimizer, such as torch.optim.SGD(…)"
        )


@EXERCISE.check("it updates all parameters that it gets, and no others", essential=True)
def updates_parameters(optimizer: Answer) -> None:
    parameters = list(network().parameters())
    updated = [param for group in optimizer(parameters).param_groups for param in group["params"]]
    if {id(parameter) for parameter in updated} != {id(parameter) for parameter in parameters}:
        raise NotYet("a server calls it with its own part of the model: pass on exactly those parameters")


@EXERCISE.check("a checkpoint can save and restore its state")
def restores_state(optimizer: Answer) -> None:
    built = optimizer(list(network().parameters()))
    built.load_state_dict(built.state_dict())


@EXERCISE.check(FRESH)
def learns_from_fresh_gradients(optimizer: Answer) -> None:
    measured = accuracy(optimizer, 0)
    if not measured >= ACCURACY:
        advice = _advise(optimizer, 0)
        raise NotYet(f"accuracy is {measured:.0%} after {UPDATES} updates, not {ACCURACY:.0%}: {advice}")


@EXERCISE.check(f"it learns from gradients that are {STALE} updates stale", after=FRESH)
def learns_from_stale_gradients(optimizer: Answer) -> None:
    measured = accuracy(optimizer, STALE)
    if not measured >= ACCURACY:
        advice = f"workers repeat a step until they see its effect; {_advise(optimizer, STALE)}"
        raise NotYet(f"accuracy is {measured:.0%}, and should be {ACCURACY:.0%}: {advice}")


def _advise(optimizer: Answer, staleness: int) -> str:
    """Advise on the optimizer's settings after training with other learning rates."""
    groups = optimizer(list(network().parameters())).param_groups
    if any(group.get("maximize") for group in groups):
        return "maximize=True increases the loss: leave it out"
    if not all(group["lr"] > 0 for group in groups):
        return "the learning rate must be greater than 0"
    momentum = max(group.get("momentum") or 0 for group in groups)
    if staleness and momentum >= MOMENTUM:
        return f"momentum={momentum:g} amplifies this: leave it out, and take smaller steps"
    measured, factor = 0.0, 1.0
    for multiple in FACTORS:
        measured, factor = max((measured, factor), (accuracy(optimizer, staleness, multiple), multiple))
        if measured >= ACCURACY:
            break
    if measured >= ACCURACY or measured > accuracy(optimizer, staleness) + NOTABLE:
        rate, better = groups[0]["lr"], groups[0]["lr"] * factor
        size = "large" if factor < 1 else "small"
        return f"the steps are too {size}: lr is {rate:g}, and {better:g} gives {measured:.0%}"
    if any((group.get("weight_decay") or 0) >= DECAY for group in groups):
        return "weight_decay shrinks the weights faster than they learn: leave it out"
    return (
        f"no learning rate from {min(FACTORS):g} to {max(FACTORS):g} times this one helps: "
        "use another optimizer, such as torch.optim.SGD(parameters, lr=…)"
    )
