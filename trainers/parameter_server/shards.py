"""Partition a model among the servers, and serialise a shard as one flat tensor for each type.

Every process computes the plan from the model itself, so it need not be sent; a hash of names, types and
shapes shows whether two processes have the same plan. A process's tensors are views of the flat ones, so a
gradient is sent, and a parameter received, with one copy and no loop over layers.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from .protocol_pb2 import Tensor


@dataclass(frozen=True)
class ShardTensor:
    """A tensor of the model: a parameter, or a buffer such as a running mean."""

    name: str
    tensor: torch.Tensor
    learned: bool


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shard and one type, sent as one."""

    learned: bool
    dtype: torch.dtype
    members: tuple[ShardTensor, ...]

    @property
    def size(self) -> int:
        """The total number of elements."""
        return sum(member.tensor.numel() for member in self.members)


def members(model: nn.Module) -> list[ShardTensor]:
    """Return the tensors of a model's ``state_dict``, shared ones only once."""
    state_names = model.state_dict().keys()
    learned = [ShardTensor(name, tensor, tensor.requires_grad) for name, tensor in model.named_parameters()]
    buffers = [
        ShardTensor(name, tensor, False) for name, tensor in model.named_buffers() if name in state_names
    ]
    return learned + buffers


def plan(model: nn.Module, servers: int) -> list[list[TensorGroup]]:
    """Return each server's groups: the largest tensor first, each to the least loaded server.

    If the model has fewer tensors than there are servers, some servers have nothing to do.
    """
    shares: list[list[ShardTensor]] = [[] for _ in range(servers)]
    loads = [0] * servers
    sized = sorted(members(model), key=lambda member: (-member.tensor.nbytes, member.name))
    for member in sized:
        lightest = min(range(servers), key=lambda index: (loads[index], index))
        shares[lightest].append(member)
        loads[lightest] += member.tensor.nbytes
    return [_group(share) for share in shares]


def _group(share: Iterable[ShardTensor]) -> list[TensorGroup]:
    grouped: dict[tuple[bool, str], list[ShardTensor]] = {}
    for member in share:
        grouped.setdefault((not member.learned, str(member.tensor.dtype)), []).append(member)
    return [
        TensorGroup(not buffers, grouped[buffers, dtype][0].tensor.dtype, tuple(grouped[buffers, dtype]))
        for buffers, dtype in sorted(grouped)
    ]


def layout(groups: Sequence[TensorGroup]) -> int:
    """Return a hash (64 bits) that is equal in two processes with the same partition."""
    descriptions = [
        f"{member.name} {member.tensor.dtype} {tuple(member.tensor.shape)} {member.tensor.stride()}"
        for group in groups
        for member in group.members
    ]
    return int.from_bytes(hashlib.sha256("\n".join(descriptions).encode()).digest()[:8], "little")


def flatten(groups: Sequence[TensorGroup], device: torch.device | str = "cpu") -> list[torch.Tensor]:
    """Return a flat tensor for each group, with the members' values; the members become views of it."""
    tensors = []
    with torch.no_grad():
        for group in groups:
            flat = torch.empty(group.size, dtype=group.dtype, device=device)
            for member, view in zip(group.members, views(group, flat), strict=True):
                view.copy_(member.tensor)
                member.tensor.data = view
            tensors.append(flat)
    return tensors


def views(group: TensorGroup, flat: torch.Tensor) -> list[torch.Tensor]:
    """Return views of a flat tensor in the members' shapes; keep the channels-last format."""
    tensors, start = [], 0
    for member in group.members:
        tensor = member.tensor
        dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
        strides = tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()
        tensors.append(flat.as_strided(tensor.shape, strides, start))
        start += tensor.numel()
    return tensors


def pack(flats: Iterable[torch.Tensor]) -> list[Tensor]:
    """Return flat tensors as messages: one copy each, into the message."""
    return [
        Tensor(
            dtype=str(flat.dtype).removeprefix("torch."),
            shape=flat.shape,
            data=flat.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(),
        )
        for flat in flats
    ]


def unpack(messages: Sequence[Tensor], into: Sequence[torch.Tensor]) -> None:
    """Copy messages into flat tensors.

    Raises:
        ValueError: Types or sizes differ.
    """
    if len(messages) != len(into):
        raise ValueError(f"{len(messages)} tensors were received, and {len(into)} are needed")
    for message, flat in zip(messages, into, strict=True):
        received, needed = f"{message.dtype} {list(message.shape)}", f"{flat.dtype} {list(flat.shape)}"
        if f"torch.{received}" != needed or len(message.data) != flat.nbytes:
            raise ValueError(f"{received}, {len(message.data)} bytes were received, and {needed} is needed")
        if flat.device.type == "cpu":
            flat.view(torch.uint8).numpy()[:] = np.frombuffer(message.data, np.uint8)
        elif flat.numel():
            flat.copy_(torch.frombuffer(bytearray(message.data), dtype=flat.dtype))
