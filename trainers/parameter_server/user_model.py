"""The user's file: ``model()``, ``loss(outputs, labels)``, ``optimizer(parameters)``, ``dataset(record)``.

Or a module of a model zoo, with the functions that ElasticDL's users write, for PyTorch:

    custom_model() -> nn.Module
    loss(labels, predictions) -> tensor
    optimizer(parameters) -> torch.optim.Optimizer
    feed(dataset, mode, metadata) -> (input, label) of each record; for "prediction" its input alone
    eval_metrics_fn() -> {"accuracy": function(labels, predictions)}

The last is optional, and so is a class ``PredictionOutputsProcessor`` with ``process(predictions,
worker_id)``. In ElasticDL, ``optimizer()`` has no parameters, because TensorFlow's optimizers get them later.
"""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .settings import JobSettings

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
NEEDED = {
    "model": "model() -> nn.Module",
    "loss": "loss(outputs, labels) -> tensor",
    "optimizer": "optimizer(parameters) -> torch.optim.Optimizer",
    "dataset": "dataset(record: bytes) -> (tensor, label)",
}
ZOO_ROLES = {
    "model": "{}() -> nn.Module",
    "loss": "{}(labels, predictions) -> tensor",
    "optimizer": "{}(parameters) -> torch.optim.Optimizer",
    "feed": "{}(dataset, mode, metadata)",
}


class UserError(Exception):
    """The user's file raises, or is incomplete. The text has the traceback in the user's file."""


@dataclass(frozen=True)
class UserModel:
    """The functions that workers and servers call.

    Attributes:
        model: Returns the network.
        loss: The mean loss, from outputs and labels.
        optimizer: Returns the optimizer of some parameters.
        feed: The examples in some records, in a mode: (input, label) pairs; for predictions inputs alone.
        metrics: By name, functions of labels and outputs: a value for each example, or one for all.
        process: Called with the predictions of a minibatch, and the worker's index.
    """

    model: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[list[Any]], Any]
    feed: Callable[[list[bytes], str], Iterable[Any]]
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    process: Callable[[Any, int], object] | None = None


def load(settings: JobSettings) -> UserModel:
    """Load the user's functions, of either form.

    Raises:
        UserError: The file cannot be imported, or lacks a function.
    """
    path = settings.trainer
    if settings.model_zoo:
        return _load_from_zoo(settings)
    module = import_file(path, folder=str(Path(path).parent))
    check(module, NEEDED, path)
    return UserModel(
        module.model, module.loss, module.optimizer, lambda records, _: map(module.dataset, records)
    )


def _load_from_zoo(settings: JobSettings) -> UserModel:
    path, names = settings.trainer, json.loads(settings.functions)
    module = import_file(path, folder=settings.model_zoo)
    check(module, {names[role]: signature.format(names[role]) for role, signature in ZOO_ROLES.items()}, path)
    functions = {role: getattr(module, names[role]) for role in ZOO_ROLES}
    metrics = getattr(module, names["eval_metrics_fn"], dict)
    processor = getattr(module, names["prediction_outputs_processor"], None)

    def feed(records: list[bytes], mode: str) -> Iterable[Any]:
        examples = list(functions["feed"](records, mode, None))
        if len(examples) != len(records):
            count = f"{len(examples)} examples of {len(records)} records"
            raise UserError(f"feed() in {path} made {count}; yield one for each")
        return examples

    try:
        return UserModel(
            functions["model"],
            lambda outputs, labels: functions["loss"](labels, outputs),
            functions["optimizer"],
            feed,
            metrics(),
            processor().process if processor else None,
        )
    except Exception as error:
        raise UserError(explain(error, path)) from error


def import_file(path: str, *, folder: str) -> ModuleType:
    """Import the user's file as a module, which may import others of a folder.

    Raises:
        UserError: It cannot be imported.
    """
    parts = Path(path).with_suffix("").relative_to(folder).parts
    name = ".".join(parts) if len(parts) > 1 else "trainer"  # a file may be called torch.py
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(explain(error, path)) from error
    return module


def check(module: ModuleType, needed: Mapping[str, str], path: str) -> None:
    """Raise UserError for functions that a module lacks; ``needed`` has their signatures by name."""
    missing = [signature for name, signature in needed.items() if not callable(getattr(module, name, None))]
    if missing:
        raise UserError(f"{path} does not define {', '.join(missing)}")


def explain(error: BaseException, path: str) -> str:
    """Return the traceback starting at the user's file; the whole traceback if that file is not in it."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename == path), 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()
