"""One server's part of the model: apply gradients, and track which were applied.

Each minibatch's gradient is applied once, however often it is pushed: a worker without a response pushes
again, and so does another one that was assigned a lost worker's task. Asynchronous: a gradient is applied on
arrival. Synchronous: the mean of ``grads_to_wait`` gradients of one version makes the next version. The
network and the checkpoints are in other modules.
"""

import copy
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import shards
from .protocol_pb2 import APPLIED, DUPLICATE, STALE, Tensor, Verdict
from .user_model import UserError, explain

# Up to this many concurrent changes of a running mean are applied in full. With torch's momentum of 0.1 they
# do not overshoot: x'(t) = -0.1 x(t - delay) does not oscillate up to a delay of 1 / (0.1 e), about 3.7.
UNSEEN = 4


class Shard:
    """Tensors, the user's optimizer for them, and the applied minibatches.

    Args:
        groups: This server's part of the plan.
        optimizer: The user's; called with the list of this shard's parameters.
        grads_to_wait: 1 or more.
        staleness_bound: Maximum staleness of a gradient that is applied at once.
        path: The user's file, for tracebacks of its optimizer.
    """

    def __init__(
        self,
        groups: Sequence[shards.TensorGroup],
        optimizer: Callable[..., Any],
        *,
        grads_to_wait: int,
        staleness_bound: int,
        path: str = "",
    ) -> None:
        self.groups, self.layout = groups, shards.layout(groups)
        self.incarnation = uuid.uuid4().int >> 64
        self.version, self._path = 0, path
        self.lock = threading.Lock()
        self._wait, self._bound = grads_to_wait, staleness_bound
        self._flats = shards.flatten(groups)
        self._received = [torch.zeros_like(flat) for flat in self._flats]  # buffers for received messages
        self._sums = [torch.zeros_like(flat) for flat in self._flats] if grads_to_wait > 1 else self._received
        parameters = []
        for group, gradient in zip(groups, self._sums, strict=True):
            if group.learned:
                for member, view in zip(group.members, shards.views(group, gradient), strict=True):
                    member.tensor.grad = view
                    parameters.append(member.tensor)
        self._optimizer = optimizer(parameters) if parameters else None
        self._buffered: list[tuple[int, int]] = []
        self._applied: dict[int, set[int]] = {}  # minibatches, by epoch
        self._first_open = 0
        self._pins: dict[int, tuple[int, list[torch.Tensor]]] = {}

    # Gradients

    def push(
        self, epoch: int, minibatch: int, *, version: int, incarnation: int, tensors: Sequence[Tensor]
    ) -> tuple[Verdict, int]:
        """Apply a minibatch's gradient, or keep it until there are enough; the caller holds the lock.

        Returns:
            A verdict, and the gradient's staleness.

        Raises:
            ValueError: The tensors do not match this shard.
            UserError: The user's optimizer raises; the shard must be restored.
        """
        if epoch < self._first_open or minibatch in self._applied.get(epoch, ()):
            return DUPLICATE, 0
        behind = max(0, self.version - version)
        # After a restart the versions continue from the checkpoint's: the same number, other parameters.
        if incarnation != self.incarnation or behind > (0 if self._wait > 1 else self._bound):
            return STALE, behind
        shards.unpack(tensors, self._received)
        self._applied.setdefault(epoch, set()).add(minibatch)
        if self._wait > 1:
            for total, received in zip(self._sums, self._received, strict=True):
                total.add_(received)
            self._buffered.append((epoch, minibatch))
            if len(self._buffered) >= self._wait:
                self._apply(len(self._buffered))
        else:
            self._apply(1, behind)
        return APPLIED, behind

    def flush(self) -> None:
        """Apply the kept gradients, although there are too few; the caller holds the lock."""
        if self._buffered:
            self._apply(len(self._buffered))

    @torch.no_grad()
    def _apply(self, count: int, behind: int = 0) -> None:
        for group, flat, total in zip(self.groups, self._flats, self._sums, strict=True):
            if group.learned:
                if count > 1:
                    total.div_(count)
            elif flat.is_floating_point():
                # A running mean changes by the mean of the changes. Stale changes are independent: their sum
                # would overshoot, and a running variance below zero makes the loss nan.
                flat.add_(total, alpha=min(1, UNSEEN / (1 + behind)) / count)
            else:  # a counter changes by the sum
                flat.add_(total)
        if self._optimizer is not None:
            try:
                with torch.enable_grad():
                    self._optimizer.step()
            except Exception as error:
                raise UserError(explain(error, self._path)) from error
        if self._wait > 1:
            for total in self._sums:
                total.zero_()
            self._buffered.clear()
        self.version += 1

    def close(self, first_open: int) -> None:
        """Forget the minibatches of closed epochs, which were all applied; the caller holds the lock."""
        self._first_open = max(self._first_open, first_open)
        for epoch in [number for number in self._applied if number < self._first_open]:
            del self._applied[epoch]

    # Parameters

    def read(self, pin: int = 0) -> tuple[int, list[Tensor]]:
        """Return a version and its tensors; the caller holds the lock.

        Raises:
            KeyError: Nothing is kept under this number.
        """
        version, flats = self._pins[pin] if pin else (self.version, self._flats)
        return version, shards.pack(flats)

    def pin(self, number: int) -> None:
        """Keep the current parameters under a number."""
        with self.lock:
            if number not in self._pins:
                self._pins[number] = (self.version, [flat.clone() for flat in self._flats])

    def unpin(self, number: int) -> None:
        """Forget pinned parameters."""
        with self.lock:
            self._pins.pop(number, None)

    # State

    def applied(self) -> dict[int, list[int]]:
        """Return the applied minibatches of open epochs; the caller holds the lock."""
        return {epoch: sorted(minibatches) for epoch, minibatches in self._applied.items()}

    def state(self) -> dict[str, Any]:
        """Return a copy of the state for a checkpoint; the caller holds the lock.

        It does not include kept gradients, which do not count as applied.
        """
        applied = self.applied()
        for epoch, minibatch in self._buffered:
            applied[epoch].remove(minibatch)
        return {
            "layout": f"{self.layout:016x}",
            "version": self.version,
            "flats": [flat.clone() for flat in self._flats],
            "optimizer": copy.deepcopy(self._optimizer.state_dict()) if self._optimizer else None,
            "first_open": self._first_open,
            "applied": applied,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint.

        Raises:
            ValueError: It belongs to another model, or to another number of servers.
        """
        if state["layout"] != f"{self.layout:016x}":
            raise ValueError("it is of another model, or of another number of servers")
        with torch.no_grad():
            for flat, saved in zip(self._flats, state["flats"], strict=True):
                flat.copy_(saved)
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
        self._first_open = state["first_open"]
        self._applied = {epoch: set(numbers) for epoch, numbers in state["applied"].items()}
