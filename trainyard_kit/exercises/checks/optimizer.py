"""10: an optimizer for a parameter server, whose gradients are stale. The course's own servers apply them.

Two shards of a small network receive gradients of the digits, each computed from parameters that are a number
of versions old: what happens by chance with many workers happens here to each gradient.
"""

import gzip
import importlib.util
import sys
from collections import deque
from functools import cache
from pathlib import Path

from kitlib import config
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe

UPDATES, MINIBATCH, ACCURACY, STALE = 400, 50, 0.85, 8
STUB = """
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
"""
EXERCISE = Exercise("optimizer", seconds=60, stub=STUB)


@cache
def digits():
    """Read the digits from scikit-learn's file, as its import takes longer: 64 numbers each, and labels."""
    import numpy
    import torch

    package = Path(importlib.util.find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = torch.from_numpy(numpy.loadtxt(file, delimiter=","))
    return table[:, :-1].float() / 16, table[:, -1].long()


def network():
    """Make the network, always with the same weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def accuracy(optimizer, staleness: int) -> float:
    """Train on two servers with gradients of this staleness; return the share of right answers."""
    sys.path.append(str(config.DATA / "trainers"))
    import torch
    from parameter_server import shards
    from parameter_server.shard import Shard

    model, (images, labels) = network(), digits()
    servers = [
        Shard(groups, optimizer, grads_to_wait=1, staleness_bound=staleness)
        for groups in shards.plan(model, 2)
    ]
    names = [name for name, _ in model.named_parameters()]
    older, generator = deque(maxlen=staleness + 1), torch.Generator().manual_seed(0)
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


@EXERCISE.check("it returns an optimizer of PyTorch", essential=True)
def returns(optimizer):
    import torch

    returned = optimizer(list(network().parameters()))
    if not isinstance(returned, torch.optim.Optimizer):
        raise NotYet(
            f"it returns {describe(returned)}, and should return an optimizer, such as torch.optim.SGD(…)"
        )


@EXERCISE.check("it updates the parameters that it is given, and all of them", essential=True)
def updates(optimizer):
    parameters = list(network().parameters())
    updated = [param for group in optimizer(parameters).param_groups for param in group["params"]]
    if {id(parameter) for parameter in updated} != {id(parameter) for parameter in parameters}:
        raise NotYet("a server calls it with its own part of the model: pass on exactly these parameters")


@EXERCISE.check("a checkpoint can save and restore its state")
def state(optimizer):
    built = optimizer(list(network().parameters()))
    built.load_state_dict(built.state_dict())


@EXERCISE.check("it learns from fresh gradients")
def fresh(optimizer):
    measured = accuracy(optimizer, 0)
    if measured < ACCURACY:
        raise NotYet(
            f"{measured:.0%} are right after {UPDATES} updates, not {ACCURACY:.0%}: is the rate too low?"
        )


@EXERCISE.check(f"it learns from gradients that are {STALE} updates old")
def stale(optimizer):
    measured = accuracy(optimizer, STALE)
    if measured < ACCURACY:
        raise NotYet(
            f"{measured:.0%} are right, and should be {ACCURACY:.0%}: workers repeat a step until they see "
            "its effect, and momentum repeats it once more; make steps smaller, and leave momentum out"
        )
