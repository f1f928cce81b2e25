"""Runs with joining and leaving workers on this machine: by the elastic launcher or a stock ``torchrun``.

Both sides have the same trainer, flags, store and limits of nodes; torchrun also gets ``--max-restarts``, as
it would end at the first lost worker. All other settings are defaults. Workers write their events to files
with times of this machine's clock.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.errors import MeasureFailed
from bench.torchrun import KEPT, THREADS
from kitlib import config
from kitlib.metrics import events as metrics

TRAINER = "trainers/digits_elastic.py"
LAUNCHER = "trainers/elastic_launch.py"
STORE = (
    "import sys, signal, torch.distributed as d\n"
    "store = d.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False)\n"
    "signal.pause()\n"
)
FLAGS = ("--epochs=100000", "--step-seconds=0.1", "--log-every=1", "--checkpoint-every=10")
DEADLINE = 400


class Workers:
    """The nodes of a run, with one worker each.

    Args:
        folder: The folder for output and checkpoints.
        stock: Whether torchrun starts them.
        nodes: MIN:MAX, as for ``--nnodes``.
    """

    def __init__(self, folder: Path, *, stock: bool, nodes: str) -> None:
        self._folder, self._stock, self._nodes = folder, stock, nodes
        folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._environment |= dict.fromkeys(THREADS, "1") | {"PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Workers":
        self._start([sys.executable, "-c", STORE, str(self._port)], "store")
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                # torchrun gives its workers sessions of their own.
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def add(self, count: int) -> float:
        """Start some nodes; return the time."""
        started_at = time.time()
        flags = [f"--nnodes={self._nodes}", "--nproc-per-node=1", "--rdzv-id=bench", "--max-restarts=100"]
        flags += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            "--rdzv-conf=is_host=false",
        ]
        torchrun = [str(Path(sys.executable).with_name("torchrun"))]
        program = torchrun if self._stock else [sys.executable, str(config.find(LAUNCHER))]
        trainer = [str(config.find(TRAINER)), *FLAGS, f"--checkpoint-dir={self._folder / 'checkpoints'}"]
        for _ in range(count):
            self._start([*program, *flags, *trainer], f"node-{len(self._processes)}")
        return started_at

    def _start(self, command: Sequence[str], name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def events(self, event: str, *, after: float = 0) -> list[Any]:
        """Return the events of all workers since a time, in order."""
        lines = [
            line
            for path in self._folder.glob("node-*.log")
            for line in path.read_text(errors="replace").splitlines()
        ]
        events = [entry for entry in metrics.parse(lines) if entry.event == event and entry.time > after]
        return sorted(events, key=lambda event: event.time)

    def wait_for_step(self, *, after: float, world: int = 0, within: float = DEADLINE) -> float | None:
        """Return the time of the first step of a new round; None if it takes too long.

        Args:
            after: The time after which the round began.
            world: Its number of workers; 0 for any.
            within: The time limit in seconds.
        """

        def first() -> float | None:
            rounds = self.events("rendezvous", after=after)
            rounds = [rendezvous for rendezvous in rounds if rendezvous.world_size == world or not world]
            steps = self.events("step", after=rounds[0].time) if rounds else []
            steps = [step for step in steps if step.world_size == world or not world]
            return steps[0].time if steps else None

        return self._wait(first, within)

    def signal(self, number: signal.Signals) -> float:
        """Send a signal to the newest round's last rank; return the time."""
        newest = max(
            self.events("rendezvous"), key=lambda event: (event.fields["round"], event.time, event.rank)
        )
        rounds = [rendezvous for rendezvous in self.events("rendezvous") if rendezvous.time > newest.time - 2]
        victim = max(rounds, key=lambda event: event.rank)
        sent_at = time.time()
        os.kill(int(victim.fields["pid"]), number)
        return sent_at

    def start_training(self, count: int) -> None:
        """Start nodes, and wait until they have taken a few steps.

        Raises:
            MeasureFailed: They do not train within the deadline.
        """
        started_at = self.add(count)
        if self.wait_for_step(after=started_at, world=count) is None:
            raise MeasureFailed(f"{count} workers did not start training within {DEADLINE} s")
        time.sleep(2)

    def _wait(self, read: Callable[[], float | None], within: float) -> float | None:
        deadline = time.monotonic() + within
        while (value := read()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return value
