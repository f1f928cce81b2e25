"""Handwritten digits, as a module of a model zoo: the functions that ElasticDL names, for PyTorch.

    elasticdl train --model_zoo=model_zoo --model_def=mnist_functional_api.mnist_functional_api.custom_model …

A record is a byte for the label and 28 x 28 bytes for the pixels, as `programs/dataset/records.py` writes.
The network is that of ElasticDL's own example: two convolutions, batch normalisation, pooling, dropout and a
linear layer.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

SIDE = 28


def custom_model() -> nn.Module:
    """Return the network."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 10),
    )


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a minibatch."""
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters: Iterable[torch.Tensor], lr: float = 0.001) -> torch.optim.Optimizer:
    """Return the optimizer of some parameters; each server has one, for its part of the model.

    With ten times this learning rate, gradients of several workers, which are stale, diverge.
    """
    return torch.optim.SGD(parameters, lr=lr)


def feed(
    dataset: Iterable[bytes], mode: str, metadata: object
) -> Iterator[torch.Tensor | tuple[torch.Tensor, int]]:
    """Yield an example for each record: (image, label); to predict, the image alone."""
    for record in dataset:
        pixels = np.frombuffer(record, np.uint8, offset=1).reshape(1, SIDE, SIDE)
        image = torch.from_numpy(pixels.astype(np.float32) / 255)
        yield image if mode == "prediction" else (image, record[0])


def eval_metrics_fn() -> dict[str, Any]:
    """Return functions of labels and predictions, each with a value for every example."""
    return {"accuracy": lambda labels, predictions: (predictions.argmax(1) == labels).double()}


class PredictionOutputsProcessor:
    """What happens with predictions: they are counted by class, in the worker's log."""

    def process(self, predictions: torch.Tensor, worker_id: int) -> None:
        """Process the predictions for a minibatch."""
        counts = torch.bincount(predictions.argmax(1), minlength=predictions.shape[1])
        print(f"worker {worker_id} predicts, by class: {counts.tolist()}", flush=True)
