"""What a job is asked for. The master reads it from its flags; servers and workers get it from the master."""

import argparse
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PORT = 50001


@dataclass(frozen=True)
class Settings:
    """A job.

    Attributes:
        job: Its name; pods and files are named after it.
        trainer: The user's file, with ``model()``, ``loss()``, ``optimizer()`` and ``dataset()``.
        records: Where the training records are.
        test_records: Where those for evaluation are; empty for none.
        state_dir: Where the master's journal and the servers' checkpoints are.
        model_file: Where the trained model is written; empty for nowhere.
        epochs: How often each record counts.
        minibatch: Records in a gradient.
        minibatches_per_task: Gradients in a task.
        evaluation_steps: Minibatches between two evaluations; 0: at the end alone.
        grads_to_wait: 1: each gradient is applied at once (asynchronous); n: the mean of n of one version.
        max_staleness: Updates that a gradient may be behind; 0 stands for four times the workers.
        workers: How many to have.
        servers: How many to have.
        checkpoint_steps: Updates between two checkpoints of a server.
        seed: Of the first weights and the order of tasks.
        dataset: Its name, for the model file.
        classes: Their names, for the model file.
        max_relaunches: How many processes may fail of their own accord, or be killed before they have done
            anything, until the job is given up. Preemption, eviction and a node's loss do not count.
        silent_seconds: How long nothing may be heard of a worker until its task goes to others.
        log_every: Minibatches between two ``step`` events of a worker.
        step_seconds: The least time for a minibatch: so that a lab on a small machine lasts long enough to
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

    @property
    def staleness_bound(self) -> int:
        """How many updates a gradient may be behind."""
        return self.max_staleness or 4 * max(1, self.workers)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Return what `to_json` has written; what is unknown here is left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            SystemExit: It says which flag, and what to do.
        """
        least = {"servers": 1, "workers": 1, "epochs": 1, "minibatch": 1, "minibatches_per_task": 1}
        least |= {
            "grads_to_wait": 1,
            "checkpoint_steps": 1,
            "evaluation_steps": 0,
            "max_staleness": 0,
            "max_relaunches": 0,
        }
        reasons = {"servers": "the model lies on the servers", "workers": "somebody must compute"}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                flag, why = f"--{name.replace('_', '-')}", reasons.get(name)
                said = f"{flag} {getattr(self, name)}: a job needs at least {bound}" + (
                    f"; {why}" if why else ""
                )
                raise SystemExit(said)
        if not Path(self.trainer).is_file():
            raise SystemExit(f"--trainer {self.trainer}: there is no such file")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    for each in fields(Settings):
        required = each.name in ("trainer", "records", "state_dir")
        default = None if required else each.default
        parser.add_argument(
            f"--{each.name.replace('_', '-')}", type=each.type, default=default, required=required
        )


def from_flags(given: argparse.Namespace) -> Settings:
    """Return the settings among parsed flags, checked."""
    settings = Settings(**{each.name: getattr(given, each.name) for each in fields(Settings)})
    settings.check()
    return settings
