"""The settings of a job. The master parses its flags; servers and workers get them from the master."""

import argparse
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PORT = 50001
ROLES = WORKER, SERVER = "worker", "ps"


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job.

    Attributes:
        job: Its name; pods and files are named after it.
        trainer: The user's file, with ``model()``, ``loss()``, ``optimizer()`` and ``dataset()``.
        model_zoo: The folder of a model zoo; the user's file then has ElasticDL's functions.
        functions: Their names, as JSON (`user_model`).
        mode: ``training``; ``evaluation`` and ``prediction`` only use the test records.
        init: The initial model: a model file, or a folder of servers' checkpoints; empty for none.
        log_level: The level of readable log lines: ``INFO`` logs losses and evaluations beside the events.
        records: Path of the training records.
        test_records: Path of the test records; empty for none.
        state_dir: Folder of the master's state and the servers' checkpoints.
        model_file: Path for the trained model; empty for none.
        epochs: Passes over the records; 0 if the mode is not training.
        minibatch: Records in a gradient.
        minibatches_per_task: Gradients in a task.
        evaluation_steps: Minibatches between two evaluations; 0: only at the end.
        grads_to_wait: 1: each gradient is applied at once (asynchronous); n: the mean of n of one version.
        max_staleness: Maximum staleness of a gradient, in updates; 0 means four times the workers.
        workers: The number of workers.
        servers: The number of servers.
        checkpoint_steps: Updates between two checkpoints of a server.
        seed: Seed of the initial weights and the order of tasks.
        dataset: Its name, for the model file.
        classes: Their names, for the model file.
        max_relaunches: How many processes may exit with an error, or be killed before they have completed
            any work, before the job fails. Preemption, eviction and the loss of a node do not count.
        silent_seconds: How long a worker may be silent before its task is reassigned.
        log_every: Minibatches between two ``step`` events of a worker.
        step_seconds: The minimum time for a minibatch, so that a run on a small machine lasts long enough to
            be watched.
    """

    trainer: str
    records: str
    state_dir: str
    job: str = "job"
    test_records: str = ""
    model_file: str = ""
    epochs: int = 1
    minibatch: int = 64
    minibatches_per_task: int = 8
    evaluation_steps: int = 0
    grads_to_wait: int = 1
    max_staleness: int = 0
    workers: int = 2
    servers: int = 1
    checkpoint_steps: int = 100
    seed: int = 0
    dataset: str = ""
    classes: str = ""
    max_relaunches: int = 3
    silent_seconds: float = 10.0
    log_every: int = 10
    step_seconds: float = 0.0
    model_zoo: str = ""
    functions: str = ""
    mode: str = "training"
    init: str = ""
    log_level: str = "WARNING"

    @property
    def staleness_bound(self) -> int:
        """The maximum staleness of a gradient, in updates."""
        return self.max_staleness or 4 * max(1, self.workers)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "JobSettings":
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))

    def check(self) -> None:
        """Validate the settings.

        Raises:
            SystemExit: A setting is invalid; the text names the flag, and what to do.
        """
        minimums = dict.fromkeys(("servers", "workers", "minibatch", "minibatches_per_task"), 1)
        minimums |= {"grads_to_wait": 1, "checkpoint_steps": 1, "epochs": int(self.mode == "training")}
        minimums |= dict.fromkeys(("evaluation_steps", "max_staleness", "max_relaunches"), 0)
        reasons = {"servers": "; servers hold the model", "workers": "; workers compute the gradients"}
        for name, least in minimums.items():
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            if value < least:
                raise SystemExit(f"{flag} {value}: a job needs at least {least}{reasons.get(name, '')}")
        if not Path(self.trainer).is_file():
            raise SystemExit(f"--trainer {self.trainer}: no such file")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    for setting in fields(JobSettings):
        required = setting.name in ("trainer", "records", "state_dir")
        default = None if required else setting.default
        parser.add_argument(
            f"--{setting.name.replace('_', '-')}", type=setting.type, default=default, required=required
        )


def from_flags(options: argparse.Namespace) -> JobSettings:
    """Return the validated settings from parsed flags."""
    settings = JobSettings(
        **{setting.name: getattr(options, setting.name) for setting in fields(JobSettings)}
    )
    settings.check()
    return settings
