"""Classify handwritten digits with parameter servers: a model file with four functions and no loop.

    kit.ParameterServer("trainers/mnist_parameter_server.py", data=data, workers=4, servers=2)

``parameter_server`` calls them: a worker requests a range of records from its master, converts each with
``dataset``, and computes gradients with ``model`` and ``loss``; a server applies the gradients with
``optimizer``. There is no rank, world size or number of workers here: they may change during training. The
network has two convolutions and a linear layer, like that of ElasticDL's walk-through, but with strided
convolutions in place of pooling, which makes it ten times as fast.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

SIDE = 28
MEAN, SPREAD = np.float32(33.3), np.float32(78.6)  # of MNIST's pixels, from 0 to 255


def model() -> nn.Module:
    """Return the network; every worker creates one and pulls its weights from the servers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.GroupNorm(4, 16),  # BatchNorm would also work, as the servers hold its running means
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 10),
    )


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over the images."""
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer; each server has one, for its part of the model."""
    return torch.optim.Adam(parameters, lr=0.0005)


def dataset(record: bytes) -> tuple[torch.Tensor, int]:
    """Return the image (1 x 28 x 28) and the label of a record: a byte for the label, then the pixels."""
    pixels = np.frombuffer(record, np.uint8, offset=1).reshape(1, SIDE, SIDE)
    return torch.from_numpy((pixels - MEAN) / SPREAD), record[0]
