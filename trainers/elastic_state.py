"""The state that workers share: a model, an optimizer, the training progress.

Every worker holds the same state in memory. After each rendezvous the most advanced worker sends its state to
the others; ``elastic.py`` does this. Trainers read and write their own checkpoints of ``State.state_dict()``.
"""

import io
from typing import Any

import torch


class State:
    """Named parts that have a ``state_dict``, and the number of steps taken.

    Args:
        steps_per_epoch: Global batches in an epoch.
        parts: Model, optimizer and whatever else has ``state_dict()`` and ``load_state_dict()``.

    Attributes:
        step: Steps taken since the start of the run, which is also the number of the next one.

    Example:
        >>> state = State(steps_per_epoch=10, model=torch.nn.Linear(1, 1))
        >>> state.step = 25
        >>> state.epoch, state.index
        (2, 5)
    """

    def __init__(self, *, steps_per_epoch: int, **parts: Any) -> None:
        if steps_per_epoch < 1:
            raise ValueError(f"an epoch has at least one step, not {steps_per_epoch}")
        self.steps_per_epoch = steps_per_epoch
        self.parts = parts
        self.step = 0
        self.ready = False

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self.step // self.steps_per_epoch

    @property
    def index(self) -> int:
        """The next step's number within its epoch."""
        return self.step % self.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parts; tensors are those in use, not copies."""
        return {name: part.state_dict() for name, part in self.parts.items()} | {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of another worker or a checkpoint.

        Raises:
            KeyError: A part is missing.
        """
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.step, self.ready = int(state["step"]), True

    def to_bytes(self) -> bytes:
        """Serialise the state."""
        buffer = io.BytesIO()
        torch.save(self.state_dict(), buffer)
        return buffer.getvalue()

    def from_bytes(self, content: bytes) -> None:
        """Load the state serialised by another worker's ``to_bytes``."""
        self.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
