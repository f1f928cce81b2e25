"""Workers of an elastic run as real processes on this machine, for tests: launchers, a store, their words.

Launchers are forked from a process that has imported torch already. The trainer learns a straight line in
float64: small enough for a step of a millisecond, and exact enough to compare losses to 1e-9.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist

from .forked import TRAINERS, Processes, free_port, run_as_main

SAMPLES, BATCH = 120, 12
# It goes on until the file `enough` is there: a test takes the time that it takes.
TRAINER = f"""
import argparse, os, time
from pathlib import Path
import torch, elastic

flags = argparse.ArgumentParser()
flags.add_argument("--folder", type=Path)
settings = flags.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn({SAMPLES}, 3)
y = x.sum(1, keepdim=True) + 0.1 * torch.randn({SAMPLES}, 1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
state = elastic.State(steps_per_epoch={SAMPLES} // {BATCH}, model=model, optimizer=optimizer)
checkpoint = settings.folder / "checkpoint"


def load(worker):
    if checkpoint.exists():
        state.load_state_dict(torch.load(checkpoint))
    return checkpoint.exists()


def train(worker):
    enough = False
    while not enough:
        order = torch.randperm({SAMPLES}, generator=torch.Generator().manual_seed(state.epoch))
        chosen = order[state.index * {BATCH} :][:{BATCH}][worker.rank :: worker.world_size]
        optimizer.zero_grad()
        loss = ((model(x[chosen]) - y[chosen]) ** 2).sum()
        loss.backward()
        totals = worker.average_gradients(model, loss=loss.detach(), samples=len(chosen))
        optimizer.step()
        state.step += 1
        worker.emit("step", step=state.step - 1, loss=totals.loss, samples=totals.samples)
        if worker.rank == 0:
            beside = settings.folder / f"checkpoint-{{os.getpid()}}"
            torch.save(state.state_dict(), beside)
            beside.replace(checkpoint)
        time.sleep(0.05)
        worker.step_boundary()
        asked = torch.tensor([float((settings.folder / "enough").exists())])
        enough = worker.all_reduce(asked).item() > 0
    worker.emit("end", steps=state.step)


elastic.run(train, state, load=load)
"""


def expected_losses(steps: int) -> list[float]:
    """Return the loss of each step when nothing happens to anybody."""
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 3, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, dtype=torch.float64)
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for epoch in range(-(-steps * BATCH // SAMPLES)):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH):
            optimizer.zero_grad()
            loss = ((model(x[chosen]) - y[chosen]) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[:steps]


class ElasticRun(Processes):
    """A store, and workers that a test starts, kills, stops and tells to leave; they have numbers."""

    def __init__(self, folder: Path, *, backend: str = "c10d", etcd: Path | None = None) -> None:
        super().__init__(folder)
        self.backend, self._etcd = backend, etcd
        self.port, self._store = free_port(), None
        self.trainer = folder / "line.py"
        self.trainer.write_text(TRAINER)
        self.start_store()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        self.kill_store()

    def start_store(self) -> None:
        """Start the store, empty."""
        if self.backend == "c10d":
            self._store = dist.TCPStore("127.0.0.1", self.port, is_master=True, wait_for_workers=False)
            return
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        flags = ["--enable-v2", f"--data-dir={self.folder / 'etcd'}", f"--initial-cluster=default={peer}"]
        flags += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        flags += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        log = (self.folder / "etcd.log").open("wb")
        self._store = subprocess.Popen([self._etcd, *flags], stdout=log, stderr=log)

    def kill_store(self) -> None:
        """Take the store away, with all that it knew."""
        if self.backend == "etcd" and self._store:
            self._store.kill()
            self._store.wait()
        self._store = None

    def add(self, *flags: str) -> int:
        """Start a launcher with one worker; return its number."""
        number = len(self.processes)
        arguments = ["--nnodes=1:4", f"--rdzv_backend={self.backend}", "--rdzv-id=test"]
        arguments += [f"--rdzv_endpoint=127.0.0.1:{self.port}", "--rdzv_conf=is_host=false", *flags]
        arguments += [str(self.trainer), f"--folder={self.folder}"]
        self.fork(number, run_as_main, str(TRAINERS / "elastic_launch.py"), arguments)
        return number

    def wait_for_steps(self, world_size: int, *, after: float = 0, count: int = 2) -> dict:
        """Wait until steps were taken in a world of that size since then; return the round's event."""

        def taken():
            steps = [event for event in self.events("step") if event["time"] > after]
            return len({step["step"] for step in steps if step["world_size"] == world_size}) >= count

        self.wait_for(taken, f"{count} steps of {world_size}")
        return [event for event in self.events("rendezvous") if event["world_size"] == world_size][-1]

    def signal(self, number: int, what: signal.Signals) -> float:
        """Send a signal to the training process itself; return when."""
        pid = self.events("rendezvous", number)[-1]["pid"]
        now = time.time()
        os.kill(pid, what)
        return now

    def leave(self, number: int) -> float:
        """Ask a worker to leave, as Kubernetes does: by telling the launcher; return when."""
        now = time.time()
        os.kill(self.processes[number].pid, signal.SIGTERM)
        return now

    def finish(self) -> None:
        """Let training come to its end."""
        (self.folder / "enough").touch()
