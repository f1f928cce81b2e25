"""Load initial weights from a model file, or from the checkpoints of an earlier job's servers."""

from pathlib import Path

import torch
from torch import nn

from . import checkpoints, shards
from .user_model import UserError

MODEL_FILE = "model.pt"
FIRST = "server-0"


@torch.no_grad()
def load(model: nn.Module, path: Path) -> None:
    """Load a model file, or the newest checkpoint in a folder, into a model.

    Args:
        model: The untrained model.
        path: A file, a folder with ``model.pt``, or a folder with servers' checkpoints in it or below.

    Raises:
        UserError: Nothing is found, or it belongs to another model.
    """
    file = path / MODEL_FILE if path.is_dir() else path
    try:
        if file.is_file():
            model.load_state_dict(torch.load(file, weights_only=True, map_location="cpu")["weights"])
            return
        _load_checkpoints(model, path)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{path} does not fit the model: {error}") from error


def _load_checkpoints(model: nn.Module, path: Path) -> None:
    paths = sorted(path.rglob(f"{FIRST}/{checkpoints.PATTERN}"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise UserError(f"{path} contains neither {MODEL_FILE} nor a server's checkpoint")
    folders = sorted(paths[-1].parents[1].glob("server-*"))
    for index, groups in enumerate(shards.plan(model, len(folders))):
        state, _ = checkpoints.load(folders[0].with_name(f"server-{index}"))
        if state is None or state["layout"] != f"{shards.layout(groups):016x}":
            raise ValueError(f"the checkpoint of server {index} is missing or belongs to another model")
        for group, flat in zip(groups, state["flats"], strict=True):
            for member, view in zip(group.members, shards.views(group, flat), strict=True):
                member.tensor.copy_(view)
