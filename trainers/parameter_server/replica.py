"""A worker's copy of the user's model: loads parameters and computes gradients, both as flat tensors."""

import os
from types import ModuleType

import torch

from . import shards
from .protocol_pb2 import Tensor
from .settings import JobSettings
from .user_model import UserError, explain


class Replica:
    """The user's model, partitioned like on the servers.

    Args:
        module: The user's file.
        settings: The job's.

    Raises:
        UserError: The user's ``model()`` raises.
    """

    def __init__(self, module: ModuleType, settings: JobSettings) -> None:
        self._user, self._path = module, settings.trainer
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cpu" and "TRAINYARD_GPUS" in os.environ:
            print("this pod has GPUs, but torch finds no CUDA device: running on the CPU", flush=True)
        try:
            self._model = module.model().to(self._device)
        except Exception as error:
            raise UserError(explain(error, self._path)) from error
        plan = shards.plan(self._model, settings.servers)
        self.layouts = [shards.layout(groups) for groups in plan]
        self._groups = [group for groups in plan for group in groups]
        self._ends = [len(groups) for groups in plan]
        self._flats = shards.flatten(self._groups, self._device)
        self._gradients = [torch.zeros_like(flat) if g.learned else None for g, flat in self._pairs()]
        for group, gradient in zip(self._groups, self._gradients, strict=True):
            if gradient is not None:
                for member, view in zip(group.members, shards.views(group, gradient), strict=True):
                    member.tensor.grad = view
        self._moves: list[torch.Tensor | None] = []

    def compute(self, records: list[bytes]) -> float:
        """Compute the gradient of the loss over some records; return the loss.

        Raises:
            UserError: The user's code raises.
        """
        before = [None if group.learned else flat.clone() for group, flat in self._pairs()]
        for gradient in self._gradients:
            if gradient is not None:
                gradient.zero_()
        try:
            inputs, labels = self._batch(records)
            self._model.train()
            loss = self._user.loss(self._model(inputs), labels)
            loss.backward()
        except Exception as error:
            raise UserError(explain(error, self._path)) from error
        self._moves = [
            None if then is None else flat - then for then, flat in zip(before, self._flats, strict=True)
        ]
        return loss.item()

    def gradients(self) -> list[list[Tensor]]:
        """Return for each server the gradients that `compute` found, and the changes of the buffers."""
        found = [g if g is not None else move for g, move in zip(self._gradients, self._moves, strict=True)]
        return self._cut(shards.pack(found))

    def load(self, tensors: list) -> None:
        """Load every server's parameters.

        Raises:
            ValueError: They belong to another model.
        """
        shards.unpack([each for shard in tensors for each in shard], self._flats)

    @torch.no_grad()
    def judge(self, records: list[bytes]) -> tuple[int, float]:
        """Return the number of correct predictions, and the sum of the losses.

        Raises:
            UserError: The user's code raises.
        """
        try:
            inputs, labels = self._batch(records)
            self._model.eval()
            outputs = self._model(inputs)
            loss = self._user.loss(outputs, labels).item() * len(records)
            return int((outputs.argmax(1) == labels).sum()), loss
        except Exception as error:
            raise UserError(explain(error, self._path)) from error

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, each with its own memory."""
        return {name: each.detach().cpu().clone() for name, each in self._model.state_dict().items()}

    def _batch(self, records: list[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = zip(*map(self._user.dataset, records), strict=True)
        return torch.stack(inputs).to(self._device), torch.as_tensor(labels).to(self._device)

    def _pairs(self):
        return zip(self._groups, self._flats, strict=True)

    def _cut(self, messages: list[Tensor]) -> list[list[Tensor]]:
        """Partition a list by server."""
        found, start = [], 0
        for count in self._ends:
            found.append(messages[start : start + count])
            start += count
        return found
