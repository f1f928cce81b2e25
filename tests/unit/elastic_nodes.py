"""Nodes of an elastic run as processes of this machine: started, killed, stopped and told to leave by a test.

One process imports torch and forks a launcher for each node, so a node costs milliseconds. The store is in
the test's own process. What a node says is read from its file, as pods' logs are; nothing here looks inside.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path

from .small_data import TRAINERS

SECONDS = 120  # for anything that is waited for: machines that run tests may be slow
# Reads lines (log file, then arguments, as JSON), forks a launcher for each, answers with its PID.
FORKER = """
import json, os, sys, elastic_launch
for line in sys.stdin:
    log, arguments = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(os.open(log + ".errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        elastic_launch.end_at_once(lambda: elastic_launch.main(arguments))
    print(pid, flush=True)
"""


class Nodes(AbstractContextManager):
    """The nodes of one run of a trainer, by number.

    Args:
        folder: Where their output goes.
        trainer: Name of a file of ``trainers/`` without its ending.
        always: The trainer's flags.
        most: How many may train together.
        conf: Timeouts, as for ``--rdzv_conf``.

    Attributes:
        run: The run's id; with another one, nodes that are started later do not meet those before.
        flags: More flags for the trainers that are started from now on.

    Example:
        >>> with Nodes(tmp_path, "digits_elastic", "--epochs=2") as nodes:
        ...     nodes.start(0, 1)
        ...     nodes.until(lambda: nodes.world(2))
        ...     nodes.kill(1)
    """

    def __init__(self, folder: Path, trainer: str, *always: str, most: int = 4, conf: str = "") -> None:
        self._folder, self._trainer, self._always = folder, TRAINERS / f"{trainer}.py", always
        self.run, self.flags = "first", []
        self._most, self._conf = most, conf
        self._pids: dict[int, int] = {}

    def __enter__(self) -> "Nodes":
        import torch.distributed as dist

        self._folder.mkdir(parents=True, exist_ok=True)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store.set_timeout(timedelta(seconds=SECONDS))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "RANK"))}
        self._forker = subprocess.Popen(
            [sys.executable, "-c", FORKER],
            env=clean | {"PYTHONPATH": str(TRAINERS), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception) -> None:
        for pid in self._pids.values():  # of the launchers: the kernel ends the trainers with them
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._forker.kill()
        self._forker.communicate()

    # Acting

    def start(self, *numbers: int) -> None:
        """Start nodes."""
        for number in numbers:
            flags = [f"--nnodes=1:{self._most}", f"--rdzv_endpoint=127.0.0.1:{self._store.port}"]
            flags += [f"--rdzv_id={self.run}", "--max_restarts=1000"]
            flags.append(f"--rdzv_conf=is_host=false{',' * bool(self._conf)}{self._conf}")
            order = [str(self._log(number)), [*flags, str(self._trainer), *self._always, *self.flags]]
            self._forker.stdin.write(json.dumps(order) + "\n")
            self._forker.stdin.flush()
            self._pids[number] = int(self._forker.stdout.readline())

    def kill(self, number: int) -> None:
        """Kill a node's training process; its launcher starts it again."""
        self.signal(number, signal.SIGKILL)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a node's training process, as it last told its PID."""
        with suppress(ProcessLookupError):
            os.kill(self.of(number, "rendezvous")[-1]["pid"], what)

    def leave(self, *numbers: int) -> None:
        """Ask nodes to leave, and wait until they have."""
        for number in numbers:
            os.kill(self._pids[number], signal.SIGTERM)
        self.until(lambda: all(self.ended(number) for number in numbers))

    # Looking

    def ended(self, number: int) -> bool:
        """Whether a node's launcher has ended."""
        try:
            stat = Path(f"/proc/{self._pids[number]}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"

    def events(self, kind: str = "") -> list[dict]:
        """Return what all nodes have said, in the order of time."""
        said = [each for path in self._folder.glob("node-*.log") for each in _read(path)]
        chosen = [each for each in said if not kind or each["event"] == kind]
        return sorted(chosen, key=lambda each: each["time"])

    def of(self, number: int, kind: str = "") -> list[dict]:
        """Return what one node has said."""
        return [each for each in _read(self._log(number)) if not kind or each["event"] == kind]

    def world(self, size: int, *, beyond: int = 2) -> bool:
        """Whether the newest steps were taken by so many ranks together, several of them."""
        newest = self.events("step")[-beyond * size :]
        return len(newest) == beyond * size and {each["world_size"] for each in newest} == {size}

    def until(self, condition: Callable[[], bool], *, seconds: float = SECONDS) -> None:
        """Wait; logs are files, so this looks again and again."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                errors = [path.read_text()[-2000:] for path in self._folder.glob("*.errors")]
                raise TimeoutError(f"not in time; last: {self.events()[-3:]}; errors: {errors}")
            time.sleep(0.05)

    def _log(self, number: int) -> Path:
        return self._folder / f"node-{number}.log"


def _read(path: Path) -> list[dict]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


def told(events: list[dict]) -> dict[int, tuple[float, int]]:
    """Return loss and number of samples of each step; who tells of one twice must tell the same.

    Example:
        >>> told([{"event": "step", "step": 0, "loss": 2.5, "samples": 64}])
        {0: (2.5, 64)}
    """
    steps: dict[int, tuple[float, int]] = {}
    for each in events:
        if each["event"] == "step":
            loss, samples = steps.setdefault(each["step"], (each["loss"], each["samples"]))
            assert abs(loss - each["loss"]) <= 1e-9, f"step {each['step']} had two results"
            assert samples == each["samples"]
    return steps
