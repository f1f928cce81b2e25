"""A model file for parameter servers: the net, the crops and the recipe of ``trainers/cifar10_ddp.py``.

Only for the measure, so that both sides compute the same. Images are cropped and mirrored one by one, because
``dataset`` gets one record at a time; the trainer processes the batch at once.
"""

import random
from collections.abc import Iterable

import numpy as np
import torch
from cifar10_ddp import MEAN, RECIPES, SPREAD, make_model  # beside it in trainers/
from torch import nn

PAD = int(RECIPES["small"]["pad"])
SIDE = 32
OFFSETS = 2 * PAD + 1
scale = np.array([1 / deviation for deviation in SPREAD], np.float32).reshape(3, 1)
shift = np.array([-m / s for m, s in zip(MEAN, SPREAD, strict=True)], np.float32).reshape(3, 1)
line = np.abs(np.arange(-PAD, SIDE + PAD))
line = SIDE - 1 - np.abs(SIDE - 1 - line)  # reflected at the edges
# For each crop, plain and mirrored: the index of each of its pixels in the image.
crops = [
    (line[down : down + SIDE, None] * SIDE + line[across : across + SIDE][::step]).ravel()
    for down in range(OFFSETS)
    for across in range(OFFSETS)
    for step in (1, -1)
]


def model() -> nn.Module:
    return make_model("small", 10).to(memory_format=torch.channels_last)


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)


def dataset(record: bytes) -> tuple[torch.Tensor, int]:
    pixels = np.frombuffer(record, np.uint8, offset=1).reshape(3, SIDE * SIDE)
    cropped = pixels.take(random.choice(crops), axis=1) * scale + shift
    return torch.from_numpy(cropped.reshape(3, SIDE, SIDE)), record[0]
