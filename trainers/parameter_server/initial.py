"""The weights to begin with: those of a model file, or of the checkpoints of an earlier job's servers."""

from pathlib import Path

import torch
from torch import nn

from . import checkpoints, shards
from .user_model import UserError

MODEL_FILE = "model.pt"
FIRST = "server-0"


@torch.no_grad()
def load(model: nn.Module, place: Path) -> None:
    """Load a model file, or the newest checkpoint in a folder, into a model.

    Args:
        model: The untrained model.
        place: A file; or a folder with ``model.pt``, or with servers' checkpoints in it or below.

    Raises:
        UserError: There is nothing to load, or it belongs to another model.
    """
    file = place / MODEL_FILE if place.is_dir() else place
    try:
        if file.is_file():
            model.load_state_dict(torch.load(file, weights_only=True, map_location="cpu")["weights"])
            return
        _load_checkpoints(model, place)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{place} does not fit the model: {error}") from error


def _load_checkpoints(model: nn.Module, place: Path) -> None:
    paths = sorted(place.rglob(f"{FIRST}/version-*.npz"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise UserError(f"there is no {MODEL_FILE} and no server's checkpoint in {place}")
    folders = sorted(paths[-1].parents[1].glob("server-*"))
    for index, groups in enumerate(shards.plan(model, len(folders))):
        state, _ = checkpoints.load(folders[0].with_name(f"server-{index}"))
        if state is None or state["layout"] != f"{shards.layout(groups):016x}":
            raise ValueError(f"the checkpoint of server {index} is missing, or of another model")
        for group, flat in zip(groups, state["flats"], strict=True):
            for member, view in zip(group.members, shards.views(group, flat), strict=True):
                member.tensor.copy_(view)
