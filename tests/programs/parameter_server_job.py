"""A job with parameter servers, for tests: its processes are forked from one that has imported torch already.

They are real processes that speak gRPC. The model is made so that its weights say how often each record has
counted: record i is a vector that is 1 at place i, the loss is the sum of the weights that it meets, and the
optimizer subtracts the gradient. Two tensors, so that two servers have one each.
"""

import importlib
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np

from .forked import TRAINERS, Processes, free_port

COUNTING = """
import numpy as np
import torch

RECORDS = {records}


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(RECORDS, dtype=torch.float64))
        self.second = torch.nn.Parameter(torch.zeros(RECORDS, dtype=torch.float64))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.batches += 1
        return torch.stack([x @ self.first, x @ self.second], 1)


def model():
    return Counting()


def loss(outputs, labels):
    return outputs.sum()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr={lr})


def dataset(record):
    number = int(np.frombuffer(record, np.uint32)[0])
    return torch.nn.functional.one_hot(torch.tensor(number), RECORDS).double(), 0
"""


def write_records(path: Path, count: int) -> Path:
    """Write records of four bytes that say their number."""
    np.save(path, np.arange(count, dtype=np.uint32).view("V4"), allow_pickle=False)
    return path


def _enter(program: str, flags: list[str]) -> None:
    """Be one of the programs; in the forked process."""
    sys.path.insert(0, str(TRAINERS))
    importlib.import_module(f"parameter_server.{program}").main(flags)


class LocalJob(Processes):
    """Processes of one job on this machine: ``master``, ``server``, ``worker``, ``worker-1`` and so on.

    Args:
        folder: Where everything of it lies.
        records: How many there are.
        model: Text of the user's file; by default the one that counts.
        lr: Of that one.
        settings: Flags of the master, with underscores.
    """

    def __init__(
        self, folder: Path, *, records: int = 512, model: str = "", lr: float = 1.0, **settings
    ) -> None:
        super().__init__(folder)
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        trainer = folder / "model.py"
        trainer.write_text(model or COUNTING.format(records=records, lr=lr))
        self.model_file = folder / "model.pt"
        flags = {"trainer": trainer, "records": write_records(folder / "train.npy", records)}
        flags |= {"state_dir": folder / "state", "model_file": self.model_file, "port": self.port}
        self.flags = [f"--{name.replace('_', '-')}={value}" for name, value in (flags | settings).items()]

    def start(self, *names: str) -> ForkServerProcess:
        """Start processes; return the last one."""
        for name in names:
            program, _, index = name.partition("-")
            own_flags = [f"--master=127.0.0.1:{self.port}", f"--index={index or 0}"]
            process = self.fork(name, _enter, program, self.flags if program == "master" else own_flags)
        return process

    def kill(self, name: str) -> None:
        """Kill a process, and see it dead."""
        process = self.processes.pop(name)
        process.kill()
        process.join()

    def wait_for_events(self, event: str, name: str, count: int = 1) -> None:
        """Wait until a process has reported something so many times."""
        self.wait_for(lambda: len(self.events(event, name)) >= count, f"{count} {event} of {name}")
