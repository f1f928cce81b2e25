"""The user's file: ``model()``, ``loss(outputs, labels)``, ``optimizer(parameters)``, ``dataset(record)``."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

NEEDED = {
    "model": "model() -> nn.Module",
    "loss": "loss(outputs, labels) -> tensor",
    "optimizer": "optimizer(parameters) -> torch.optim.Optimizer",
    "dataset": "dataset(record: bytes) -> (tensor, label)",
}


class UserError(Exception):
    """The user's file raises, or is incomplete. The text has the traceback in the user's file."""


def load(path: str) -> ModuleType:
    """Import the user's file as a module.

    Raises:
        UserError: It cannot be imported, or lacks one of the four functions.
    """
    spec = importlib.util.spec_from_file_location("trainer", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = module
    sys.path.insert(0, str(Path(path).parent))  # it may import modules next to it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(explain(error, path)) from error
    lacking = [words for name, words in NEEDED.items() if not callable(getattr(module, name, None))]
    if lacking:
        raise UserError(f"{path} does not define {', '.join(lacking)}")
    return module


def explain(error: BaseException, path: str) -> str:
    """Return the traceback starting at the user's file; the whole traceback if that file is not in it."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename == path), 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()
