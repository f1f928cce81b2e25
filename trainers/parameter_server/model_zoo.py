"""A module of a model zoo: the functions that ElasticDL's users write, for PyTorch.

    custom_model() -> nn.Module
    loss(labels, predictions) -> tensor
    optimizer(parameters) -> torch.optim.Optimizer
    feed(dataset, mode, metadata) -> (input, label) of each record; for "prediction" its input alone
    eval_metrics_fn() -> {"accuracy": function(labels, predictions)}

The last is optional, and so is a class ``PredictionOutputsProcessor`` with ``process(predictions,
worker_id)``. In ElasticDL, ``optimizer()`` has no parameters, because TensorFlow's optimizers get them later.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from .settings import JobSettings
from .user_model import UserError, UserModel, check, explain, import_file, load

ROLES = {
    "model": "{}() -> nn.Module",
    "loss": "{}(labels, predictions) -> tensor",
    "optimizer": "{}(parameters) -> torch.optim.Optimizer",
    "feed": "{}(dataset, mode, metadata)",
}


def load_model(settings: JobSettings) -> UserModel:
    """Load the user's model, of either form.

    Raises:
        UserError: The file cannot be imported, or lacks a function.
    """
    if not settings.model_zoo:
        return load(settings.trainer)
    path, names = settings.trainer, json.loads(settings.functions)
    module = import_file(path, folder=settings.model_zoo)
    check(module, {names[role]: signature.format(names[role]) for role, signature in ROLES.items()}, path)
    functions = {role: getattr(module, names[role]) for role in ROLES}
    metrics = getattr(module, names["eval_metrics_fn"], dict)
    processor = getattr(module, names["prediction_outputs_processor"], None)
    try:
        return UserModel(
            functions["model"],
            lambda outputs, labels: functions["loss"](labels, outputs),
            functions["optimizer"],
            lambda records, mode: _feed(functions["feed"], records, mode, path),
            metrics(),
            processor().process if processor else None,
        )
    except Exception as error:
        raise UserError(explain(error, path)) from error


def _feed(feed: Callable[..., Iterable[Any]], records: list[bytes], mode: str, path: str) -> Iterable[Any]:
    examples = list(feed(records, mode, None))
    if len(examples) != len(records):
        raise UserError(
            f"feed() in {path} made {len(examples)} examples of {len(records)} records; yield one for each"
        )
    return examples
