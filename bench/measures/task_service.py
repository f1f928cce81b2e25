"""Tasks per second over gRPC, and the master's memory, with a million tasks and 200 simulated workers.

The master is the real one, in a separate process, with its state on disk. A task is one record and one
message each way: the request reports the last task, and the response assigns the next. Two processes simulate
all workers, which wait for responses concurrently. They share the cores with the master, so the figure is a
lower bound.

Bounded by gRPC in Python: of 107 µs of CPU per task in the master, 16 are for the ledger and its file.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil

from bench import torchrun
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.results import Limit, Result
from kitlib import config

TASKS, WORKERS, PROCESSES = 1_000_000, 200, 2
SECONDS, QUICK_SECONDS = 10, 3
START_SECONDS = 60
RATE = Limit(5000, of="value", unit="tasks/s", at="least")
MEMORY = Limit(300, of="value", unit="MB")


def measure(lab: Lab) -> list[Result]:
    """Request tasks as fast as possible for a few seconds per round.

    Raises:
        MeasureFailed: The master does not start, or a worker got no task.
    """
    lab.clear()
    seconds = QUICK_SECONDS if lab.quick else SECONDS
    rates, memory = [], []
    for number in range(lab.rounds):
        lab.report(f"requesting tasks, {seconds} s")
        folder = lab.folder / f"tasks-{number}"
        with _master(folder) as (process, address):
            rates.append(_measure_rate(address, seconds))
            memory.append(process.memory_info().rss / 1e6)
    about = f"parameter server's master, {TASKS:,} tasks, {WORKERS} simulated workers"
    return [
        Result(what=f"{about}: tasks through gRPC", unit="tasks/s", ours=tuple(rates), limit=RATE),
        Result(what=f"{about}: its memory (RSS)", unit="MB", ours=tuple(memory), limit=MEMORY),
    ]


@contextmanager
def _master(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    folder.mkdir()
    records, port = folder / "records.npy", torchrun.free_port()
    np.save(records, np.zeros(TASKS, "V1"), allow_pickle=False)
    command = [sys.executable, "-m", "parameter_server.master", f"--trainer={__file__}", f"--port={port}"]
    command += [f"--records={records}", f"--state-dir={folder / 'state'}", f"--workers={WORKERS}"]
    command += ["--minibatch=1", "--minibatches-per-task=1"]
    trainers = config.find("trainers/parameter_server/master.py").parents[1]
    with (folder / "master.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=trainers, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield psutil.Process(process.pid), f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _measure_rate(address: str, seconds: float) -> float:
    """Return the tasks per second of all simulated workers."""
    share = WORKERS // PROCESSES
    program = str(Path(__file__).parents[1] / "task_clients.py")
    with ExitStack() as stack:
        clients, pipes = [], []
        for number in range(PROCESSES):
            command = [sys.executable, program, address, str(number * share), str(share), str(seconds)]
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            clients.append(stack.enter_context(client))
            stack.callback(client.kill)
            assert client.stdin and client.stdout
            pipes.append((client.stdin, client.stdout))
        deadline = time.monotonic() + START_SECONDS
        for _, output in pipes:
            if output.readline().strip() != "ready" or time.monotonic() > deadline:
                raise MeasureFailed("the simulated workers cannot reach the master")
        for pipe, _ in pipes:
            pipe.write("\n")
            pipe.flush()
        answers = [output.readline().split() for _, output in pipes]
        for client in clients:
            client.wait()
    if not all(len(fields) == 2 for fields in answers):
        raise MeasureFailed("a simulated worker got no task")
    return sum(int(count) / float(elapsed) for count, elapsed in answers)
