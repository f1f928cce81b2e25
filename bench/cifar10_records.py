"""A model file for parameter servers: the net, the crops and the recipe of ``trainers/cifar10_ddp.py``.

For the measure alone: so that both sides compute the same. Each image is cropped and mirrored by itself, as
``dataset`` gets one record at a time; the trainer does it for the batch.
"""

import random

import numpy as np
import torch
from cifar10_ddp import MEAN, RECIPES, SPREAD, make_model  # beside it in trainers/
from torch import nn

PAD = RECIPES["small"]["pad"]
SIDE = 32
mean, spread = (np.array(each, np.float32).reshape(3, 1, 1) for each in (MEAN, SPREAD))
places = np.abs(np.arange(-PAD, SIDE + PAD))
places = SIDE - 1 - np.abs(SIDE - 1 - places)  # reflected at the edges


def model():
    return make_model("small", 10).to(memory_format=torch.channels_last)


def loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)


def dataset(record):
    pixels = np.frombuffer(record, np.uint8, offset=1).reshape(3, SIDE, SIDE)
    down, across = random.randint(0, 2 * PAD), random.randint(0, 2 * PAD)
    columns = places[across : across + SIDE]
    columns = columns[::-1] if random.random() < 0.5 else columns
    moved = pixels[:, places[down : down + SIDE, None], columns]
    return torch.from_numpy((moved - mean) / spread), record[0]
