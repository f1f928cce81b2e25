# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.4", "torch>=2.15"]
# ///
"""Classify handwritten digits with parameter servers: the model file, four functions and no loop.

    kit.ParameterServer("trainers/mnist_parameter_server.py", data=data, workers=4, servers=2)

Who calls them is ``parameter_server``: a worker asks its master for a range of records, has ``dataset`` make
a pair of each, ``model`` answer and ``loss`` judge; a server applies the gradients by ``optimizer``. So there
is no rank here, no world size and no number of workers: they may change while it trains. The network is the
one of ElasticDL's walk-through: two convolutions, normalised and pooled, and a layer that answers.
"""

import numpy as np
import torch
from torch import nn

SIDE = 28


def model() -> nn.Module:
    """Return the network; every worker makes one, and gets its numbers from the servers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(8, 64),  # not BatchNorm: its running means would be one worker's, and nobody's gradients
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 10),
    )


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how wrong the answers are, as a mean over the images."""
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters) -> torch.optim.Optimizer:
    """Return what turns gradients into steps; each server has one, for its part of the model."""
    return torch.optim.Adam(parameters, lr=0.001)


def dataset(record: bytes) -> tuple[torch.Tensor, int]:
    """Return the image (1 x 28 x 28) and the label of a record: a byte for the label, then the pixels."""
    pixels = np.frombuffer(record, np.uint8, offset=1).reshape(1, SIDE, SIDE)
    return torch.from_numpy(pixels / np.float32(255)), record[0]
