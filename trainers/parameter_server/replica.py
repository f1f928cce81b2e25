"""A worker's copy of the user's model: loads parameters and computes gradients, both as flat tensors."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

from . import shards
from .protocol_pb2 import Score, Tensor
from .settings import JobSettings
from .user_model import EVALUATION, PREDICTION, TRAINING, UserError, UserModel, explain


class Replica:
    """The user's model, partitioned like on the servers.

    Args:
        user: The user's model.
        settings: The job's.

    Raises:
        UserError: The user's ``model()`` raises.
    """

    def __init__(self, user: UserModel, settings: JobSettings) -> None:
        self._user, self._path = user, settings.trainer
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cpu" and "TRAINYARD_GPUS" in os.environ:
            print("this pod has GPUs, but torch finds no CUDA device: running on the CPU", flush=True)
        try:
            self._model = user.model().to(self._device)
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
        self._buffer_changes: list[torch.Tensor | None] = []

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
            inputs, labels = self._batch(records, TRAINING)
            self._model.train()
            loss = self._user.loss(self._model(inputs), labels)
            loss.backward()
        except Exception as error:
            raise UserError(explain(error, self._path)) from error
        self._buffer_changes = [
            None if old is None else flat - old for old, flat in zip(before, self._flats, strict=True)
        ]
        return loss.item()

    def gradients(self) -> list[list[Tensor]]:
        """Return for each server the gradients that `compute` found, and the changes of the buffers."""
        pairs = zip(self._gradients, self._buffer_changes, strict=True)  # one of each pair is None
        return self._split_by_server(shards.pack(part for pair in pairs for part in pair if part is not None))

    def load(self, tensors: list[Any]) -> None:
        """Load every server's parameters.

        Raises:
            ValueError: They belong to another model.
        """
        shards.unpack([tensor for shard in tensors for tensor in shard], self._flats)

    @torch.no_grad()
    def evaluate(self, records: list[bytes], score: Score) -> None:
        """Add some records' correct predictions, losses and metrics to a score.

        Raises:
            UserError: The user's code raises.
        """
        try:
            inputs, labels = self._batch(records, EVALUATION)
            self._model.eval()
            outputs = self._model(inputs)
            score.images += len(records)
            score.loss += self._user.loss(outputs, labels).item() * len(records)
            if not self._user.metrics:
                score.correct += int((outputs.argmax(1) == labels).sum())
            for name, metric in self._user.metrics.items():
                measured = torch.as_tensor(metric(labels, outputs), dtype=torch.float64)
                score.metrics[name] += measured.mean().item() * len(records)
        except Exception as error:
            raise UserError(explain(error, self._path)) from error

    @torch.no_grad()
    def predict(self, records: list[bytes], worker: int) -> None:
        """Have the user's code process the predictions for some records.

        Raises:
            UserError: The user's code raises, or there is none.
        """
        if self._user.process is None:
            raise UserError(f"{self._path} has no class that processes predictions")
        try:
            self._model.eval()
            self._user.process(self._model(self._batch(records, PREDICTION)), worker)
        except Exception as error:
            raise UserError(explain(error, self._path)) from error

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, each with its own memory."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._model.state_dict().items()}

    def _batch(self, records: list[bytes], mode: str) -> Any:
        """Return inputs and labels, for predictions inputs alone, on the device."""
        return self._to_device(default_collate(list(self._user.feed(records, mode))))

    def _to_device(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return batch.to(self._device)
        if isinstance(batch, dict):
            return {name: self._to_device(tensor) for name, tensor in batch.items()}
        return [self._to_device(tensor) for tensor in batch]

    def _pairs(self) -> Iterator[tuple[shards.TensorGroup, torch.Tensor]]:
        return zip(self._groups, self._flats, strict=True)

    def _split_by_server(self, messages: list[Tensor]) -> list[list[Tensor]]:
        """Partition a list by server."""
        pieces, start = [], 0
        for count in self._ends:
            pieces.append(messages[start : start + count])
            start += count
        return pieces
