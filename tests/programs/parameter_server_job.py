"""A job with parameter servers, for tests: its processes are forked from one that has imported torch already.

They are real processes that speak gRPC. The model is made so that its weights say how often each record has
counted: record i is a vector that is 1 at place i, the loss is the sum of the weights that it meets, and the
optimizer subtracts the gradient. Two tensors, so that two servers have one each.
"""

import importlib
import json
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

TRAINERS = str(Path(__file__).parents[2] / "trainers")
DEADLINE = 120
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


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_records(path: Path, count: int) -> Path:
    """Write records of four bytes that say their number."""
    np.save(path, np.arange(count, dtype=np.uint32).view("V4"), allow_pickle=False)
    return path


def _enter(program: str, flags: list[str], log: str) -> None:
    """Be one of the programs; in the forked process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, TRAINERS)
    importlib.import_module(f"parameter_server.{program}").main(flags)


class LocalJob:
    """Processes of one job on this machine.

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
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        trainer = folder / "model.py"
        trainer.write_text(model or COUNTING.format(records=records, lr=lr))
        self.model_file = folder / "model.pt"
        flags = {"trainer": trainer, "records": write_records(folder / "train.npy", records)}
        flags |= {"state_dir": folder / "state", "model_file": self.model_file, "port": self.port}
        self.flags = [f"--{name.replace('_', '-')}={value}" for name, value in (flags | settings).items()]
        self._context = multiprocessing.get_context("forkserver")
        os.environ["OMP_NUM_THREADS"] = "1"
        self._context.set_forkserver_preload(["torch", "grpc", "numpy"])
        self.processes: dict[tuple[str, int], multiprocessing.Process] = {}

    def __enter__(self) -> "LocalJob":
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join()

    def start(self, program: str, index: int = 0) -> multiprocessing.Process:
        """Start a process."""
        own_flags = [f"--master=127.0.0.1:{self.port}", f"--index={index}"]
        flags = self.flags if program == "master" else own_flags
        log = str(self.log(program, index))
        process = self._context.Process(target=_enter, args=(program, flags, log))
        process.start()
        self.processes[program, index] = process
        return process

    def kill(self, program: str, index: int = 0) -> None:
        """Kill a process, and see it dead."""
        process = self.processes.pop((program, index))
        process.kill()
        process.join()

    def log(self, program: str, index: int = 0) -> Path:
        """Return where a process's output is; one that is started anew goes on with it."""
        return self.folder / f"{program}-{index}.log"

    def events(self, program: str, index: int = 0, event: str = "") -> list[dict]:
        """Return what a process has said so far."""
        path = self.log(program, index)
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line for line in records if not event or line["event"] == event]

    def wait_for(self, program: str, event: str, *, index: int = 0, count: int = 1) -> list[dict]:
        """Wait until a process has said something so many times."""
        deadline = time.monotonic() + DEADLINE
        while len(events := self.events(program, index, event)) < count:
            assert time.monotonic() < deadline, f"no {count} {event}: {self.everything()}"
            time.sleep(0.02)
        return events

    def join(self, program: str, index: int = 0) -> int:
        """Wait for a process's end; return its exit code."""
        process = self.processes[program, index]
        process.join(DEADLINE)
        assert process.exitcode is not None, f"{program} {index} does not end: {self.everything()}"
        return process.exitcode

    def everything(self) -> str:
        """Return all output, for the message of a failure."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}\n{path.read_text()[-2000:]}" for path in logs)
