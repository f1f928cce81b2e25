"""Runs with joining and leaving workers on this machine: by the elastic launcher or a stock ``torchrun``.

The same trainer file, flags, store and limits of nodes on both sides; torchrun is told ``--max-restarts``, or
it would end at the first loss. Everything else is as it comes. Workers write their events to files, stamped
by this machine's clock.
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
        folder: Where output and checkpoints lie.
        stock: Let torchrun start them.
        nodes: MIN:MAX, as ``--nnodes`` takes it.
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
        now = time.time()
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
        return now

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
        found = [entry for entry in metrics.parse(lines) if entry.event == event and entry.time > after]
        return sorted(found, key=lambda each: each.time)

    def wait_for_step(self, *, after: float, world: int = 0, within: float = DEADLINE) -> float | None:
        """Return the time of the first step of a new round; None if it takes too long.

        Args:
            after: The round has begun since then.
            world: It has so many workers; 0 for any.
            within: Seconds.
        """

        def first() -> float | None:
            rounds = self.events("rendezvous", after=after)
            rounds = [rendezvous for rendezvous in rounds if rendezvous.world_size == world or not world]
            steps = self.events("step", after=rounds[0].time) if rounds else []
            steps = [step for step in steps if step.world_size == world or not world]
            return steps[0].time if steps else None

        return self._wait(first, within)

    def signal(self, what: signal.Signals) -> float:
        """Send a signal to the newest round's last rank; return the time."""
        newest = max(
            self.events("rendezvous"), key=lambda event: (event.fields["round"], event.time, event.rank)
        )
        rounds = [rendezvous for rendezvous in self.events("rendezvous") if rendezvous.time > newest.time - 2]
        victim = max(rounds, key=lambda event: event.rank)
        now = time.time()
        os.kill(int(victim.fields["pid"]), what)
        return now

    def begin(self, count: int) -> None:
        """Start some nodes, and let them take a few steps.

        Raises:
            MeasureFailed: They do not.
        """
        began = self.add(count)
        if self.wait_for_step(after=began, world=count) is None:
            raise MeasureFailed(f"{count} workers have not begun to train within {DEADLINE} s")
        time.sleep(2)

    def _wait(self, look: Callable[[], float | None], within: float) -> float | None:
        deadline = time.monotonic() + within
        while (value := look()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return value
